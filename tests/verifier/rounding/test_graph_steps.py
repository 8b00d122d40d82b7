"""Graphs within quantization steps: what the compiler's passes make of quantized layers, and what
must not be proved."""

from __future__ import annotations

import numpy as np
import pytest

from scripts.fuzz_steps import Counts, check_pair
from superopt.ir import graph as ir_graph
from superopt.ir.graph import Graph, Value
from superopt.plan.graph.quantization.products import lower_quantized_products
from superopt.plan.graph.quantization.requantize import merge_requantization
from superopt.te.expr.dtype import F32, I8, I32, U8
from superopt.verifier.rounding.compare_steps import compare_within_steps
from superopt.verifier.rounding.graph_steps import StepProver, WithinSteps
from superopt.verifier.rounding.quantized_results import match_result
from superopt.verifier.verdict import Unknown
from tests.support.verifier.quantized_layers import (
    LAYERS,
    ROWS,
    convolution,
    dequantize,
    given,
    graph_of,
    make,
    number,
    quantize,
    two_layers,
)

SECONDS = 20.0
PASSES = {
    "products": lower_quantized_products,
    "requantize": lambda g: merge_requantization(lower_quantized_products(g)),
}


def prove_within(a: Value, b: Value) -> WithinSteps | Unknown:
    return StepProver().prove(a, b)


@pytest.mark.parametrize("which", PASSES)
@pytest.mark.parametrize("layer", LAYERS)
def test_what_the_passes_make_of_a_layer_is_within_a_step(layer: str, which: str) -> None:
    before = graph_of(LAYERS[layer]())
    after = PASSES[which](before)
    if after.outputs == before.outputs:
        assert which == "products"
        assert layer in ("requantization", "scaled", "average")
        return
    (found,) = compare_within_steps(before, after, SECONDS)
    assert isinstance(found, WithinSteps), found
    assert found.steps == 1
    assert found.error < 0.1


def test_steps_of_a_layer_are_errors_of_the_next() -> None:
    before = graph_of(two_layers())
    (found,) = compare_within_steps(before, PASSES["requantize"](before), SECONDS)
    assert isinstance(found, WithinSteps)
    # eight weights of 7 * 0.004, each times a step of 0.05, over a step of 0.05
    assert 8 * 7 * 0.004 < found.error < 8 * 7 * 0.004 + 0.1
    assert found.steps == 1


def test_many_weights_let_a_step_grow() -> None:
    x = dequantize(quantize(make("Relu", [convolution()]), 0.05, 0), 0.05, 0)
    w = make("DequantizeLinear", [number(np.full((4, 8, 1, 1), 100), np.int8), number(0.004)])
    before = graph_of(quantize(make("Conv", [x, w]), 0.05, 0))
    (found,) = compare_within_steps(before, PASSES["requantize"](before), SECONDS)
    assert isinstance(found, WithinSteps)
    assert found.steps == 4  # 3.2 and what rounds


def test_dequantized_and_moved_results_are_compared_in_steps() -> None:
    before = LAYERS["product"]()
    after = PASSES["requantize"](graph_of(before)).outputs[0]
    ends = [
        make("Transpose", [dequantize(v, 0.1, -5, np.int8)], perm=(1, 0)) for v in (before, after)
    ]
    (found,) = compare_within_steps(Graph((ROWS,), (ends[0],)), Graph((ROWS,), (ends[1],)), SECONDS)
    assert isinstance(found, WithinSteps)
    assert found.steps == 1


def test_dequantized_by_other_scales_is_not_proved() -> None:
    before = LAYERS["product"]()
    after = PASSES["requantize"](graph_of(before)).outputs[0]
    ends = [dequantize(before, 0.1, -5, np.int8), dequantize(after, 0.101, -5, np.int8)]
    (found,) = compare_within_steps(Graph((ROWS,), (ends[0],)), Graph((ROWS,), (ends[1],)), SECONDS)
    assert isinstance(found, Unknown)


# --- what must not be proved ----------------------------------------------------------------------


def requantize(move: float = 0.0, scale: float = 0.03, zero: int = -5) -> Value:
    x = dequantize(ROWS, 0.02, 3, np.int8)
    return quantize(make("Add", [x, number(move)]) if move else x, scale, zero, np.int8)


@pytest.mark.parametrize("move", [0.03, 0.015, 0.006])
def test_a_shift_by_a_step_or_part_of_one_is_refused(move: float) -> None:
    assert isinstance(prove_within(requantize(), requantize(move)), Unknown)


def test_an_offset_that_cancels_is_not_within_a_step() -> None:
    """Equal over the real numbers: float32 keeps multiples of eight steps of 10^8."""
    x = dequantize(ROWS, 0.02, 3, np.int8)
    much = number(0.03e8)
    moved = make("Sub", [make("Add", [x, much]), much])
    found = prove_within(requantize(), quantize(moved, 0.03, -5, np.int8))
    assert not (isinstance(found, WithinSteps) and found.steps < 8)


@pytest.mark.parametrize("fn", ["Floor", "Ceil"])
def test_another_rounding_is_not_matched(fn: str) -> None:
    steps = make("Clip", [make("Div", [dequantize(ROWS, 0.02, 3, np.int8), number(0.03)]),
                          number(-123.0), number(132.0)])  # fmt: skip

    def result(rounding: str) -> Value:
        whole = make("Cast", [make(rounding, [steps])], to=I32)
        shifted = make("Add", [whole, number(-5, np.int32)])
        return make("Cast", [shifted], to=I8)

    assert isinstance(prove_within(requantize(), result("Round")), WithinSteps)
    assert isinstance(prove_within(requantize(), result(fn)), Unknown)


def test_rounding_without_limits_is_not_matched() -> None:
    """A cast of what exceeds the type wraps, and does not saturate."""
    steps = make("Div", [dequantize(ROWS, 0.02, 3, np.int8), number(0.0003)])
    whole = make("Cast", [make("Round", [steps])], to=I32)
    assert match_result(make("Cast", [whole], to=I8)) is None


@pytest.mark.parametrize("other", [requantize(zero=-4), requantize(scale=0.04)])
def test_other_grids_are_not_within_a_step(other: Value) -> None:
    found = prove_within(requantize(), other)
    assert not (isinstance(found, WithinSteps) and found.steps <= 1)


def test_floats_of_any_size_have_no_bound() -> None:
    x = given("f", F32, 4)
    a = quantize(make("Add", [x, number(1.0)]), 0.1, 0)
    b = quantize(make("Add", [number(0.5), make("Add", [x, number(0.5)])]), 0.1, 0)
    assert isinstance(prove_within(a, b), Unknown)


def test_what_is_computed_from_other_values_is_not_shared() -> None:
    """The second layer is one value of what differs by a step: it is not taken for equal."""
    first = quantize(convolution(), 0.05, 120)
    after = PASSES["requantize"](graph_of(first)).outputs[0]
    prover = StepProver()
    ends = []
    for v in (first, after):
        x = make("Mul", [dequantize(v, 0.05, 120), number(8.0)])
        ends.append(quantize(x, 0.05, 0))
    found = prover.prove(*ends)  # the layer before is computed twice, too
    assert not (isinstance(found, WithinSteps) and found.steps < 8)
    assert compare_within_steps(graph_of(ends[0]), Graph(graph_of(ends[0]).inputs, (ends[1],)),
                                SECONDS)[0].steps >= 9  # fmt: skip


def test_other_weights_are_not_within_a_step() -> None:
    before = LAYERS["product"]()
    (weights,) = [c for c in ir_graph.constants([before]) if c.type.shape == (32, 10)]
    changed = np.array(weights.load())
    changed[3, 4] = -changed[3, 4]
    after = ir_graph.replace(
        Graph((ROWS,), (before,)), {weights: ir_graph.constant(changed)}
    ).outputs[0]
    found = prove_within(before, after)
    assert not (isinstance(found, WithinSteps) and found.steps <= 1)


def test_sums_that_wrap_are_not_taken_for_floats() -> None:
    """40,000 products of 255 * 255 exceed int32: the product of integers is another function."""
    x, w = given("x", U8, 1, 40_000), number(np.full((40_000, 1), 255), np.uint8)
    a = quantize(make("MatMul", [dequantize(x, 1e-4, 0), dequantize(w, 1e-4, 0)]), 0.1, 0)
    after = lower_quantized_products(Graph((x,), (a,))).outputs[0]
    assert after is not a
    assert isinstance(prove_within(a, after), Unknown)


def test_proofs_of_random_pairs_hold_on_what_is_computed() -> None:
    """scripts/fuzz_steps.py tries more."""
    counts = Counts()
    for seed in range(60):
        check_pair(seed, counts)
    assert not counts.wrong
    assert sum(counts.proved.values()) > 10
    assert counts.differing > 0
