"""Which products of 8-bit integers may exceed 16 bits, told by their weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as oir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto as T
from onnx import helper, numpy_helper

from superopt.onnx_io.check.int8_saturation import Remedy, can_saturate, saturating_nodes

UNSIGNED, FLOATS, NONE = Remedy.UNSIGNED_WEIGHTS, Remedy.NO_FUSION, Remedy.NONE
LARGE = np.full((4, 4), 127, np.int8)
SMALL = np.full((4, 4), 64, np.int8)  # of 7 bits: 255 * 128 is below 2**15
node = helper.make_node


def column(*weights: int) -> np.ndarray:
    return np.array(weights, np.int8)[:, None]


@pytest.mark.parametrize(
    ("weights", "axis", "found"),
    [
        (LARGE, -2, True),
        (SMALL, -2, False),
        (column(64, 64), -2, False),  # 32640
        (column(64, 65), -2, True),  # 32895
        (column(-64, -64), -2, False),  # -32640
        (column(-128, 0), -2, False),  # -32640
        (column(-64, -65), -2, True),  # -32895
        (column(127, -128), -2, False),  # of one sign each
        (column(127, 0, 0, 127), -2, False),  # in different pairs
        (column(0, 127, 127, 0), -2, False),
        (column(0, 0, 127, 127), -2, True),
        (column(1, 2, 127), -2, False),  # the last term has no partner
        (column(127, 0, 127), -2, False),
        (column(127, 127).T, -2, False),  # of two results
        (column(127, 127).T, -1, True),
        (column(127, 0, 127).reshape(1, 3, 1, 1), None, True),  # a convolution's, in any order
        (column(127, 127).reshape(2, 1, 1, 1), None, False),
        (np.zeros((0, 4), np.int8), -2, False),
        (np.zeros((0, 4, 1, 1), np.int8), None, False),
        (np.stack([SMALL, LARGE]), -2, True),
    ],
)
def test_pairs_of_weights(weights: np.ndarray, axis: int | None, found: bool) -> None:
    assert can_saturate(weights, axis) is found


@given(st.lists(st.integers(-128, 127), min_size=1, max_size=8), st.data())
def test_what_is_safe_never_saturates(weights: list[int], data: st.DataObject) -> None:
    """The exact 16-bit sums of pairs, for any activations."""
    if can_saturate(np.array(weights, np.int8)[:, None], -2):
        return
    some = data.draw(st.lists(st.integers(0, 255), min_size=len(weights), max_size=len(weights)))
    terms = [a * w for a, w in zip(some, weights, strict=True)] + [0]
    sums = [terms[k] + terms[k + 1] for k in range(0, len(weights), 2)]
    assert all(-(1 << 15) <= s < 1 << 15 for s in sums)


def model(
    nodes: Sequence[object], weights: np.ndarray | None, opset: int = 17, activation: int = T.UINT8
) -> oir.Model:
    """weights: None where they are an input."""
    info = helper.make_tensor_value_info
    held = {
        "s": np.array(1, np.float32), "z": np.array(0, np.uint8), "b": np.array(0, np.int8),
    }  # fmt: skip
    inputs = [info("x", activation, None), info("f", T.FLOAT, None)]
    if weights is None:
        inputs.append(info("w", T.INT8, None))
    else:
        held["w"] = weights
    graph = helper.make_graph(
        list(nodes), "g", inputs, [info("y", T.FLOAT, None)],
        [numpy_helper.from_array(v, k) for k, v in held.items()],
    )  # fmt: skip
    ids = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return oir.from_proto(helper.make_model(graph, opset_imports=ids))


def microsoft(op: str, *inputs: str) -> object:
    return node(op, inputs, ["y"], domain="com.microsoft")


INTEGER = {
    "MatMulInteger": node("MatMulInteger", ["x", "w"], ["y"]),
    "QLinearMatMul": node("QLinearMatMul", ["x", "s", "z", "w", "s", "b", "s", "z"], ["y"]),
    "MatMulIntegerToFloat": microsoft("MatMulIntegerToFloat", "x", "w", "s", "s"),
    "DynamicQuantizeMatMul": microsoft("DynamicQuantizeMatMul", "f", "w", "s"),
    "QGemm": microsoft("QGemm", "x", "s", "z", "w", "s", "b"),
    "QAttention": microsoft("QAttention", "x", "w", "f", "s", "s"),
    "DynamicQuantizeLSTM": microsoft("DynamicQuantizeLSTM", "f", "w", "w"),
}


@pytest.mark.parametrize("op", INTEGER)
@pytest.mark.parametrize(
    ("weights", "remedies"),
    [(LARGE, [UNSIGNED]), (SMALL, []), (LARGE.astype(np.uint8), []), (None, [NONE])],
)
def test_products_of_integers(op: str, weights: np.ndarray | None, remedies: list[Remedy]) -> None:
    found = saturating_nodes(model([INTEGER[op]], weights))
    assert [(n.op, n.name, n.remedy) for n in found] == [(op, "y", r) for r in remedies]


def test_signed_activations_are_multiplied_in_32_bits() -> None:
    assert not saturating_nodes(model([INTEGER["MatMulInteger"]], LARGE, activation=T.INT8))


def test_an_operator_that_onnxruntime_has_no_remedy_for() -> None:
    (found,) = saturating_nodes(model([INTEGER["QLinearMatMul"]], LARGE, opset=21))
    assert found.remedy is NONE


def test_a_convolution() -> None:
    conv = node("QLinearConv", ["x", "s", "z", "w", "s", "b", "s", "z"], ["y"])
    weights = np.zeros((2, 3, 1, 1), np.int8)
    assert not saturating_nodes(model([conv], weights))
    weights[1, [0, 2]] = 127
    (found,) = saturating_nodes(model([conv], weights))
    assert (found.op, found.remedy) == ("QLinearConv", UNSIGNED)


def dequantized(op: str, **attributes: int) -> list[object]:
    return [
        node("DequantizeLinear", ["x", "s", "z"], ["a"]),
        node("DequantizeLinear", ["w", "s", "b"], ["c"]),
        node(op, ["a", "c"], ["y"], **attributes),
    ]


@pytest.mark.parametrize(
    ("op", "attributes", "weights", "remedies"),
    [
        ("MatMul", {}, LARGE, [UNSIGNED]),
        ("MatMul", {}, SMALL, []),
        ("MatMul", {}, None, [FLOATS]),
        ("Gemm", {}, column(127, 127), [UNSIGNED]),
        ("Gemm", {"transB": 1}, column(127, 127), []),
        ("Gemm", {"transB": 1}, column(127, 127).T, [UNSIGNED]),
        ("Conv", {}, np.full((1, 2, 1, 1), 127, np.int8), [UNSIGNED]),
        ("Conv", {}, np.full((2, 1, 1, 1), 127, np.int8), []),
        ("Add", {}, LARGE, []),
    ],
)
def test_products_between_dequantizations(
    op: str, attributes: dict[str, int], weights: np.ndarray | None, remedies: list[Remedy]
) -> None:
    found = saturating_nodes(model(dequantized(op, **attributes), weights))
    assert [(n.op, n.remedy) for n in found] == [(op, r) for r in remedies]


def test_branches_are_looked_into() -> None:
    inner = helper.make_graph(
        [node("MatMulInteger", ["x", "w"], ["i"])], "t", [],
        [helper.make_tensor_value_info("i", T.INT32, None)],
    )  # fmt: skip
    choice = node("If", ["c"], ["y"], then_branch=inner, else_branch=inner)
    condition = node("Cast", ["f"], ["c"], to=T.BOOL)
    assert len(saturating_nodes(model([condition, choice], LARGE))) == 2
