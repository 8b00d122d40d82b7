"""The quantization step of an output, and differences counted in it."""

from __future__ import annotations

import numpy as np
import pytest

from superopt.check.quantization_steps import output_step, step_difference
from superopt.check.quantizers import depends_on_quantizer, quantization_grids
from superopt.ir import graph as ir_graph
from superopt.ir.graph import constant
from superopt.ops import OPS
from superopt.te.expr.dtype import F32, U8
from superopt.te.expr.tensor import TensorType

X = ir_graph.Input("x", TensorType(F32, (2, 3)))


def node(op: str, *inputs: ir_graph.Value, **attrs: object) -> ir_graph.Node:
    return ir_graph.node(OPS[op], inputs, **attrs)  # type: ignore[arg-type]


def quantize_node(
    scale: object, zero: int = 7, dtype: type = np.uint8
) -> tuple[ir_graph.Node, ...]:
    s = constant(np.asarray(scale, np.float32))
    z = constant(np.full(np.shape(scale), zero, dtype))
    q = node("QuantizeLinear", X, s, z)
    return q, node("DequantizeLinear", q, s, z)


def test_integers_have_the_step_1_and_floats_the_scale() -> None:
    q, d = quantize_node(0.25)
    assert output_step(q, {}) == 1.0
    assert output_step(d, {}) == 0.25
    assert output_step(node("Relu", node("Transpose", d, perm=(1, 0))), {}) == 0.25
    assert output_step(node("Reshape", q, shape=(6,)), {}) == 1.0


def test_the_step_of_a_channel_moves_with_its_elements() -> None:
    _, d = quantize_node([0.5, 0.25, 2.0])
    turned = node("Transpose", d, perm=(1, 0))
    both = node("Concat", turned, turned, axis=1)
    np.testing.assert_array_equal(output_step(both, {}), np.repeat([[0.5], [0.25], [2.0]], 4, 1))


def test_other_values_have_no_step() -> None:
    _, d = quantize_node(0.25)
    assert output_step(X, {}) is None
    assert output_step(node("Add", d, d), {}) is None
    assert output_step(node("Concat", d, X, axis=0), {}) is None


def test_given_integers_are_not_rounded() -> None:
    """What is dequantized from an input has one value."""
    given = ir_graph.Input("q", TensorType(U8, (2, 3)))
    d = node("DequantizeLinear", given, constant(np.float32(0.5)))
    assert output_step(d, {}) is None
    assert not depends_on_quantizer(d)


def test_values_that_are_quantized_on_the_way() -> None:
    _, d = quantize_node(0.25)
    assert depends_on_quantizer(node("Exp", d))
    assert not depends_on_quantizer(node("Exp", X))


def test_grids_are_compared_by_scale_and_zero_point() -> None:
    def grids(*quantization: object) -> object:
        return quantization_grids(ir_graph.Graph((X,), (quantize_node(*quantization)[1],)))  # type: ignore[arg-type]

    assert grids(0.25) == grids(0.25 * (1 + 1e-7)) != grids(0.2501)
    assert grids(0.25, 7) != grids(0.25, 8)
    assert grids(0.25, 7) != grids(0.25, 7, np.int8)


REF = np.arange(1000, dtype=np.float64)


def off(count: int, steps: float = 1.0) -> np.ndarray:
    changed = REF.copy()
    changed[:count] += steps
    return changed * 0.1


@pytest.mark.parametrize(
    ("own", "candidate", "good"),
    [
        (off(0), off(0), True),
        (off(0), off(4), True),  # 3, and a thousandth
        (off(0), off(5), False),
        (off(100), off(300), True),  # the original's own may be had from the other end
        (off(0), off(1, 2), False),
        (off(1, 2), -off(0) + 2 * off(0), True),
        (off(3, 2), 2 * off(0) - off(3, 5), True),
        (off(3, 2), 2 * off(0) - off(3, 6), False),
        (off(0), off(1, 0.5), False),
        (off(0), off(1, 1.005), True),
    ],
)
def test_what_rounding_explains(own: np.ndarray, candidate: np.ndarray, good: bool) -> None:
    found = step_difference(0.1, REF * 0.1, own, candidate)
    assert (found.failure == "") == good, found


def test_a_result_that_equals_the_originals_own_has_no_steps() -> None:
    found = step_difference(0.1, REF * 0.1, off(400), off(400))
    assert (found.steps, found.count, found.original_steps) == (0, 0, 1)
