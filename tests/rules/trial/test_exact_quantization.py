"""Rules over quantized operators are bit-exact in float32, not only over the real numbers."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from superopt.ir.evaluate import evaluate
from superopt.ir.graph import Graph, Input, Node, constant, node
from superopt.ops import OPS
from superopt.rules.lang.rule import Rule, parse_rules
from superopt.rules.library.load import load_library
from superopt.rules.trial.draws import OVERFLOW_DRAW
from superopt.rules.trial.exact_quantization import equal_input, equal_operand
from superopt.rules.trial.float_class import float_class
from superopt.rules.trial.instances import instances
from superopt.rules.trial.try_rule import draw_feeds, evaluate_sides
from superopt.te.eval.domain import Reals
from superopt.te.expr.dtype import F32, I8, I16, U8, DType, to_numpy
from superopt.te.expr.tensor import TensorType

DRAWS = ("normal", "whole", "halves", OVERFLOW_DRAW)
QUANTIZED = [r for r in load_library() if r.source.startswith("quantized.rules")]


@pytest.mark.parametrize("rule", QUANTIZED, ids=lambda r: r.name)
def test_both_sides_are_equal_bit_by_bit(rule: Rule) -> None:
    """In the types of the model, on integers of the whole range, and at ties."""
    tried = 0
    for number, one in enumerate(islice(instances(rule, 0), 12)):
        for draw in DRAWS:
            feeds = draw_feeds(rule, one, draw, number)
            left, right = evaluate_sides(one, feeds, Reals())
            for a, b in zip(left, right, strict=True):
                assert a.dtype == b.dtype
                assert a.tobytes() == b.tobytes(), (str(one), draw)
                tried += 1
    assert tried >= 4 * len(DRAWS)


def quantize_numbers(dtype: DType, numbers: np.ndarray, scale: float, zero: int) -> Node:
    x = constant(numbers.astype(to_numpy(dtype)))
    s, z = constant(np.float32(scale)), constant(to_numpy(dtype).type(zero))
    floats = node(OPS["DequantizeLinear"], (x, s, z))
    return node(OPS["QuantizeLinear"], (floats, s, z))


@pytest.mark.parametrize("dtype", [U8, I8, I16])
def test_what_is_dequantized_and_quantized_is_itself(dtype: DType) -> None:
    """All integers, extreme zero points, and scales between the bounds of the rule."""
    info = np.iinfo(to_numpy(dtype))
    numbers = np.arange(info.min, info.max + 1)
    rng = np.random.default_rng(0)
    scales = 10.0 ** rng.uniform(-29.9, 29.9, 60)
    for scale in (*scales, 1.0, 0.1, 1 / 3, 1.1754944e-30):
        for zero in (info.min, info.max, 0, int(rng.integers(info.min, info.max))):
            (found,) = evaluate(Graph((), (quantize_numbers(dtype, numbers, scale, zero),)), {})
            assert np.array_equal(found, numbers), (scale, zero)


def test_a_scale_whose_products_overflow_is_left_out() -> None:
    numbers = np.arange(256)
    out = quantize_numbers(U8, numbers, 3e38, 0)
    (found,) = evaluate(Graph((), (out,)), {})
    assert not np.array_equal(found, numbers)
    assert equal_operand(out) is None
    assert equal_operand(quantize_numbers(U8, numbers, 3.0, 0)) is not None


@pytest.mark.parametrize(("zero", "is_equal"), [(-128, True), (-127, False), (0, False)])
def test_a_relu_changes_nothing_if_the_zero_point_is_the_least(zero: int, is_equal: bool) -> None:
    x = Input("x", TensorType(F32, (4001,)))
    s, z = constant(np.float32(0.07)), constant(np.int8(zero))
    relu = node(OPS["Relu"], (x,))
    out = node(OPS["QuantizeLinear"], (relu, s, z))
    plain = node(OPS["QuantizeLinear"], (x, s, z))
    assert (equal_input(out) is x) == is_equal
    feeds = {"x": np.linspace(-20, 20, 4001).astype(np.float32)}
    feeds["x"][:3] = np.nan, np.inf, -np.inf
    first, second = evaluate(Graph((x,), (out, plain)), feeds)
    assert np.array_equal(first, second) == is_equal


@pytest.mark.parametrize(
    "text",
    [
        "(x: u8, s: f32[], t: f32[], z: u8[]):"
        " QuantizeLinear(DequantizeLinear(x, s, z), t, z) => x where value(s) > 0, value(t) > 0",
        "(x: u8, s: f32[], z: u8[]): QuantizeLinear(DequantizeLinear(x, s, z), s, z) => x",
        "(x: f32, s: f32[], z: u8[]): QuantizeLinear(Relu(x), s, z) => QuantizeLinear(x, s, z)"
        " where value(s) > 0, value(z) == 3",
        "(x: f32, s: f32[], z: u8[]): QuantizeLinear(Add(Add(x, x), x), s, z)"
        " => QuantizeLinear(Mul(x, 3), s, z) where value(s) > 0",
    ],
)
def test_what_rounding_changes_is_in_no_low_class(text: str) -> None:
    (rule,) = parse_rules(f"other{text} ; float=E0")
    assert float_class(rule) == "E3"
