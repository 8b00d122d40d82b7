"""Proofs of quantization steps in `verify` and in the check of `optimize`."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

import superopt
from superopt.check.quantization_steps import NO_PROOF, StepAllowance, step_difference
from superopt.ir.graph import Graph, producer
from superopt.plan.graph.quantization.products import lower_quantized_products
from superopt.plan.graph.quantization.requantize import merge_requantization
from superopt.report.data.report import Verdict
from superopt.report.text.report_text import verdict_text
from superopt.verification.step_proofs import prove_allowances
from tests.support.quantized_models import FLOAT, U8, QuantizedLayers, onnx_model
from tests.support.verifier.quantized_layers import (
    LAYERS,
    convolution,
    dequantize,
    graph_of,
    make,
    number,
    quantize,
)

pytest.importorskip("onnxruntime")

SHAPE: list[int | str] = [16, 64]


def requantization_model(merged: bool, move: float = 0.0, off: float = 0.0) -> onnx.ModelProto:
    """u8 by 0.3 to steps of 0.2: each second integer is in the middle of two steps."""
    constants = {
        "s": np.float32(0.3), "o": np.float32(0.2), "z": np.uint8(7), "p": np.uint8(100),
        "zf": np.float32(7 + move), "one": np.float32(1), "by": np.float32(1.5 * (1 + off)),
    }  # fmt: skip
    if merged:
        nodes = [
            helper.make_node("Cast", ["x"], ["f"], to=FLOAT),
            helper.make_node("Sub", ["f", "zf"], ["d"]),
            helper.make_node("Mul", ["d", "by"], ["y"]),
            helper.make_node("QuantizeLinear", ["y", "one", "p"], ["q"]),
        ]
    else:
        nodes = [
            helper.make_node("DequantizeLinear", ["x", "s", "z"], ["y"]),
            helper.make_node("QuantizeLinear", ["y", "o", "p"], ["q"]),
        ]
    used = {i for n in nodes for i in n.input}
    known = {k: v for k, v in constants.items() if k in used}
    return onnx_model(nodes, {"x": (U8, SHAPE)}, ("q", U8), known)


def verify(a: onnx.ModelProto, b: onnx.ModelProto, **options: object) -> Verdict:
    found = superopt.verify(a, b, limit=40, **options)  # type: ignore[arg-type]
    assert isinstance(found, Verdict)
    return found


def test_a_merged_scale_is_proved_within_a_step() -> None:
    found = verify(requantization_model(False), requantization_model(True))
    assert found.decision == "proved"
    assert found.proved_steps == 1
    assert "in float32 within 1 quantization step" in found.reason
    assert verdict_text(found).startswith("proved: every element of 1 output")


def test_a_factor_off_by_a_millionth_is_proved_within_a_step() -> None:
    """The models are not equal over the real numbers, but nearly."""
    found = verify(requantization_model(False), requantization_model(True, off=1e-6))
    assert found.decision == "proved"
    assert found.proved_steps == 1
    assert verdict_text(found).startswith("proved: equal within 1 quantization step: 1 output")


def test_many_elements_may_differ_by_a_proved_step() -> None:
    """As each second integer is a tie, which the count of elements alone would refute."""
    found = verify(requantization_model(False), requantization_model(True))
    assert found.check is not None
    (output,) = found.check.outputs
    assert output.passed
    assert (
        verify(requantization_model(False), requantization_model(True), method="numeric").decision
        == "differs"
    )


def test_no_step_is_proved_of_a_moved_value() -> None:
    found = verify(requantization_model(False), requantization_model(True, move=1.0))
    assert found.decision == "differs"
    assert found.proved_steps == 0


def test_the_allowed_steps_limit_a_proof() -> None:
    assert (
        verify(requantization_model(False), requantization_model(True), max_steps=0).decision
        == "differs"
    )


def test_more_steps_are_called_equal_if_they_are_allowed() -> None:
    layers = [QuantizedLayers(depth=2, split=split, dequantize=False) for split in (False, True)]
    a, b = (onnx.shape_inference.infer_shapes(m.model()) for m in layers)
    found = verify(a, b, method="index", max_steps=64)
    assert found.decision == "proved"
    assert found.proved_steps > 1


def test_a_proved_step_allows_any_number_of_elements_but_no_larger_step() -> None:
    own = np.zeros(100)
    by_one, by_two = np.ones(100), np.full(100, 2.0)
    assert step_difference(1.0, own, own, by_one).failure
    assert not step_difference(1.0, own, own, by_one, 0.5, 1).failure
    assert step_difference(1.0, own, own, by_two, 0.5, 1).failure
    assert step_difference(1.0, own, own, by_one * 0.5, 0.5, 1).failure


def test_near_layers_allow_what_verify_allows_and_no_more() -> None:
    near = StepAllowance(has_near_layers=True)
    assert near.scale(0.5) == 1.0
    assert NO_PROOF.scale(0.5) == 0.5
    assert near.scale(2.0) == 2.0


def lower(g: Graph) -> Graph:
    return merge_requantization(lower_quantized_products(g))


def test_allowances_are_by_layer_where_steps_grow() -> None:
    one = graph_of(LAYERS["product"]())
    assert prove_allowances(one, lower(one), 20.0) == (StepAllowance(1),)
    x = dequantize(quantize(make("Relu", [convolution()]), 0.05, 0), 0.05, 0)
    w = make("DequantizeLinear", [number(np.full((4, 8, 1, 1), 100), np.int8), number(0.004)])
    two = graph_of(quantize(make("Conv", [x, w]), 0.05, 0))
    assert prove_allowances(two, lower(two), 20.0) == (StepAllowance(0, True),)


def test_zero_points_of_zero_change_no_layer() -> None:
    """As `dequantize-without-zero` leaves them out: a runtime may then fuse other operators."""
    x = dequantize(quantize(make("Relu", [convolution()]), 0.05, 0), 0.05, 0)
    n = producer(x)
    assert n is not None
    plain = make("DequantizeLinear", list(n.inputs[:2]))
    a, b = (quantize(make("Mul", [v, number(3.0)]), 0.05, 0) for v in (x, plain))
    assert a is not b
    assert prove_allowances(graph_of(a), graph_of(b), 20.0) == (StepAllowance(0, True),)


def test_wrong_layers_have_no_allowance() -> None:
    one = LAYERS["product"]()
    n = producer(one)
    assert n is not None
    x = n.inputs[0]
    assert x is not None
    other = quantize(x, 0.11, -5, np.int8)
    assert prove_allowances(graph_of(one), graph_of(other), 5.0) == (NO_PROOF,)
