"""Weights of 4 bits and float8: read in wider types, or by MatMulNBits; written as they were."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import superopt
from superopt.ir import graph
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.read.source import read_model
from tests.support.onnx_io.rounds import assert_same

RANGES = {TensorProto.INT4: (-8, 8), TensorProto.UINT4: (0, 16)}
# The axis and the block size, by the granularity of scales.
GRANULARITIES = {"tensor": (1, 0), "columns": (1, 0), "blocks": (0, 16), "rows": (0, 0)}


def model(
    kind: int,
    granularity: str,
    zeros: bool,
    shape: tuple[int, int] = (40, 24),
    reader: str = "MatMul",
) -> tuple[onnx.ModelProto, np.ndarray]:
    """Return x times dequantized weights, or their sum, and the weights in float64."""
    rng = np.random.default_rng(3)
    axis, block = GRANULARITIES[granularity]
    own = {"tensor": (), "columns": shape[1:], "rows": shape[:1]}.get(
        granularity, (-(-shape[0] // 16), shape[1])
    )
    q, scale = rng.integers(*RANGES[kind], shape), rng.random(own).astype(np.float32)
    zero = rng.integers(*RANGES[kind], own) if zeros else np.zeros(own, int)

    def along(a: np.ndarray) -> np.ndarray:
        if granularity == "blocks":
            return np.repeat(a, 16, axis=0)[: shape[0]]
        return a.reshape(-1, 1) if granularity == "rows" else a

    constants = [
        helper.make_tensor("w", kind, shape, q.reshape(-1)),
        numpy_helper.from_array(np.asarray(scale), "s"),
    ]
    if zeros:
        constants.append(helper.make_tensor("z", kind, own, np.asarray(zero).reshape(-1)))
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s", *["z"] * zeros], ["f"], axis=axis,
                         block_size=block),
        helper.make_node(reader, ["x", "f"], ["y"]),
    ]  # fmt: skip
    sizes = [3, shape[0]] if reader == "MatMul" else [*shape]
    out = [3, shape[1]] if reader == "MatMul" else [*shape]
    made = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, sizes)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, out)], constants,
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 21)]
    weights = (q - along(np.asarray(zero))) * along(np.asarray(scale)).astype(np.float64)
    return helper.make_model(made, opset_imports=opsets, ir_version=10), weights


@pytest.mark.parametrize("reader", ["MatMul", "Add"])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("kind", RANGES)
def test_weights_have_kernels_and_are_written_as_they_were(
    kind: int, granularity: str, zeros: bool, reader: str
) -> None:
    m, weights = model(kind, granularity, zeros, reader=reader)
    exe = superopt.compile(m, threads=1)
    assert not exe.fallback_nodes({})
    shape = [d.dim_value for d in m.graph.input[0].type.tensor_type.shape.dim]
    x = np.random.default_rng(4).standard_normal(shape).astype(np.float32)
    want = x @ weights if reader == "MatMul" else x + weights
    np.testing.assert_allclose(exe.run({"x": x})["y"], want, rtol=0, atol=2e-6 * np.abs(want).max())
    assert_same(m)
    ops = [n.op.name for n in graph.nodes(import_model(read_model(m)).graph)]
    packs = reader == "MatMul" and granularity != "rows"
    assert ops == (["MatMulNBits"] if packs else ["DequantizeLinear", reader])


@pytest.mark.parametrize("shape", [(1, 1), (7, 5), (16, 3), (130, 33), (257, 8)])
def test_any_number_of_terms_and_columns(shape: tuple[int, int]) -> None:
    for granularity in ("tensor", "columns", "blocks"):
        m, weights = model(TensorProto.INT4, granularity, True, shape)
        x = np.random.default_rng(4).standard_normal((3, shape[0])).astype(np.float32)
        got, want = superopt.compile(m, threads=1).run({"x": x})["y"], x @ weights
        np.testing.assert_allclose(got, want, rtol=0, atol=2e-6 * np.abs(want).max())


def test_optimize_keeps_the_weights_in_4_bits() -> None:
    m, _ = model(TensorProto.INT4, "blocks", True)
    found = superopt.optimize(m, budget=1).model
    kinds = {t.data_type for t in found.graph.initializer}
    assert TensorProto.INT4 in kinds
    assert [n.op_type for n in found.graph.node] == ["DequantizeLinear", "MatMul"]


FLOAT8 = {
    TensorProto.FLOAT8E4M3FN: ml_dtypes.float8_e4m3fn,
    TensorProto.FLOAT8E4M3FNUZ: ml_dtypes.float8_e4m3fnuz,
    TensorProto.FLOAT8E5M2: ml_dtypes.float8_e5m2,
    TensorProto.FLOAT8E5M2FNUZ: ml_dtypes.float8_e5m2fnuz,
}


@pytest.mark.parametrize("kind", FLOAT8)
def test_all_values_of_float8_are_read(kind: int) -> None:
    bits = np.arange(256, dtype=np.uint8).reshape(16, 16)
    values, scale = bits.view(FLOAT8[kind]), np.linspace(0.1, 4, 16, dtype=np.float32)
    w = onnx.TensorProto(data_type=kind, dims=[16, 16], name="w", raw_data=bits.tobytes())
    zero = onnx.TensorProto(data_type=kind, dims=[16], name="z", raw_data=bytes(16))
    node = [
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["f"], axis=0),
        helper.make_node("Add", ["x", "f"], ["y"]),
    ]
    made = helper.make_graph(
        node, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [16, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [16, 16])],
        [w, numpy_helper.from_array(scale, "s"), zero],
    )  # fmt: skip
    m = helper.make_model(made, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    exe = superopt.compile(m, threads=1)
    assert not exe.fallback_nodes({})
    got = exe.run({"x": np.zeros((16, 16), np.float32)})["y"]
    np.testing.assert_array_equal(got, values.astype(np.float32) * scale[:, None])
    assert_same(m)
