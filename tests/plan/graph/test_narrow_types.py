"""Small floats are computed as float32; products of dequantized integers as those of integers."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import superopt
from superopt.compilation.cpu import code_generator
from superopt.ir.graph import nodes
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.read.source import read_model
from superopt.plan.graph.partition import INTEGER_PRODUCT_REASON
from superopt.plan.graph.simplify import simplify_graph
from superopt.te.analysis.walk import reductions
from superopt.te.expr.dtype import F16, F32
from tests.support.compilation.forms import node, program_of
from tests.support.compilation.models import near, reference

HALVES = {
    "f16": (TensorProto.FLOAT16, np.float16),
    "bf16": (TensorProto.BFLOAT16, ml_dtypes.bfloat16),
}


def made(nodes: list, kinds: dict[str, tuple[int, list[int]]], gives: dict[str, int],
         known: dict[str, np.ndarray]) -> onnx.ModelProto:  # fmt: skip
    inputs = [helper.make_tensor_value_info(n, *t) for n, t in kinds.items()]
    outputs = [helper.make_tensor_value_info(n, t, None) for n, t in gives.items()]
    some = [numpy_helper.from_array(a, n) for n, a in known.items()]
    graph = helper.make_graph(nodes, "narrow", inputs, outputs, some)
    m = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    return onnx.shape_inference.infer_shapes(m)


def net(kind: str) -> onnx.ModelProto:
    to, dtype = HALVES[kind]
    rng = np.random.default_rng(0)
    known = {
        "w": (rng.standard_normal((32, 16, 3, 3)) / 12).astype(dtype),
        "v": (rng.standard_normal((32, 8)) / 6).astype(dtype),
        "three": np.array(3, dtype),
    }
    return made(
        [node("Conv", ["x", "w"], ["a"], pads=[1] * 4), node("Relu", ["a"], ["b"]),
         node("GlobalAveragePool", ["b"], ["c"]), node("Flatten", ["c"], ["d"]),
         node("MatMul", ["d", "v"], ["e"]), node("Mul", ["e", "three"], ["f"]),
         node("Softmax", ["f"], ["y"]), node("Cast", ["f"], ["z"], to=TensorProto.FLOAT)],
        {"x": (to, [1, 16, 12, 12])}, {"y": to, "z": TensorProto.FLOAT}, known,
    )  # fmt: skip


@pytest.mark.parametrize("kind", HALVES)
def test_a_net_of_small_floats(kind: str) -> None:
    dtype = HALVES[kind][1]
    m = net(kind)
    x = np.random.default_rng(1).standard_normal((1, 16, 12, 12)).astype(dtype)
    exact = made(
        list(m.graph.node), {"x": (TensorProto.FLOAT, [1, 16, 12, 12])},
        {"y": TensorProto.FLOAT, "z": TensorProto.FLOAT},
        {t.name: numpy_helper.to_array(t).astype(np.float32) for t in m.graph.initializer},
    )  # fmt: skip
    wanted = reference(exact, {"x": x.astype(np.float32)})
    got = superopt.compile(m)(x=x)
    assert got["y"].dtype == dtype
    assert got["z"].dtype == np.float32
    near({"z": got["z"]}, {"z": wanted["z"]})  # nothing is rounded on the way
    step = float(ml_dtypes.finfo(dtype).eps)
    np.testing.assert_allclose(got["y"].astype(np.float32), wanted["y"], rtol=step)


@pytest.mark.parametrize("float_class", ["E1", "E2"])
def test_what_products_are_of(float_class: str) -> None:
    exe = superopt.compile(net("f16"), float_class=float_class)
    exe(x=np.zeros((1, 16, 12, 12), np.float16))
    (steps,) = exe.variants.values()
    problems = steps[0].code.program.problems.values()  # type: ignore[union-attr]
    found = {p.tensor.dtype for p in problems if reductions(p.tensor.body)}
    assert (F16 in found) == (float_class == "E1")


def test_a_cast_rounds() -> None:
    """What is cast is rounded, and integers are made of what it is rounded to."""
    half, long = TensorProto.FLOAT16, TensorProto.INT64
    m = made(
        [node("Cast", ["x"], ["a"], to=half), node("Mul", ["a", "t"], ["b"]),
         node("Cast", ["b"], ["y"], to=long), node("Add", ["a", "a"], ["z"])],
        {"x": (TensorProto.FLOAT, [4])}, {"y": long, "z": half}, {"t": np.array(3, np.float16)},
    )  # fmt: skip
    x = np.array([1 / 3, 0.1, 2049.0, -7.7], np.float32)
    got = superopt.compile(m)(x=x)
    a = x.astype(np.float16)
    np.testing.assert_array_equal(got["y"], (a * np.float16(3)).astype(np.int64))
    np.testing.assert_array_equal(got["z"], a + a)


def test_what_is_infinite_is_so_by_its_own_type() -> None:
    half, bool_ = TensorProto.FLOAT16, TensorProto.BOOL
    m = made(
        [node("Mul", ["x", "x"], ["a"]), node("IsInf", ["a"], ["y"])],
        {"x": (half, [3])}, {"y": bool_}, {},
    )  # fmt: skip
    x = np.array([2048, 1, 3000], np.float16)
    np.testing.assert_array_equal(superopt.compile(m)(x=x)["y"], [True, False, True])


def test_no_model_of_other_floats_is_changed() -> None:
    rng = np.random.default_rng(0)
    m = made(
        [node("MatMul", ["x", "w"], ["y"])], {"x": (TensorProto.FLOAT, [3, 8])},
        {"y": TensorProto.FLOAT}, {"w": rng.standard_normal((8, 5)).astype(np.float32)},
    )  # fmt: skip
    assert {p.tensor.dtype for p in program_of(m).problems.values()} == {F32}


def quantized(weights_only: bool) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    known = {
        "w8": rng.integers(-100, 100, (16, 16)).astype(np.int8), "s": np.array(0.02, np.float32),
        "z": np.array(0, np.int8), "zx": np.array(128, np.uint8),
    }  # fmt: skip
    nodes = [node("DequantizeLinear", ["w8", "s", "z"], ["w"])]
    if weights_only:
        nodes.append(node("MatMul", ["x", "w"], ["y"]))
    else:
        nodes += [node("QuantizeLinear", ["x", "s", "zx"], ["q"]),
                  node("DequantizeLinear", ["q", "s", "zx"], ["d"]),
                  node("MatMul", ["d", "w"], ["y"])]  # fmt: skip
    float_ = TensorProto.FLOAT
    return made(nodes, {"x": (float_, ["n", 16])}, {"y": float_}, known)


def test_integers_of_32_bits_are_no_such_model() -> None:
    m = quantized(weights_only=False)
    wide = onnx.ModelProto()
    wide.CopyFrom(m)
    (w,) = (t for t in wide.graph.initializer if t.name == "w8")
    w.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(w).astype(np.int32), "w8"))
    del wide.graph.node[0].input[2]  # it has no zero point
    x = {"x": np.random.default_rng(0).standard_normal((2, 16)).astype(np.float32)}
    near(superopt.compile(wide).run(x), reference(m, x))
    assert not any("Integer" in op for op in planned_ops(wide))


def planned_ops(m: onnx.ModelProto) -> list[str]:
    return [n.op.name for n in nodes(simplify_graph(import_model(read_model(m)).graph))]


def test_products_of_dequantized_integers_are_of_integers() -> None:
    m = quantized(weights_only=False)
    assert "MatMulInteger" in planned_ops(m)
    exe = superopt.compile(m)
    for n in (1, 3):
        x = {"x": np.random.default_rng(n).standard_normal((n, 16)).astype(np.float32)}
        near(exe.run(x), reference(m, x))
        assert not exe.fallback_nodes({"n": n})
    x = {"x": np.ones((2, 16), np.float32)}
    only = superopt.compile(quantized(weights_only=True))
    assert "MatMulInteger" not in planned_ops(quantized(weights_only=True))
    near(only.run(x), reference(quantized(weights_only=True), x))


def test_products_of_batches_of_weights_run_in_onnxruntime() -> None:
    w = np.random.default_rng(0).integers(-100, 100, (2, 8, 4)).astype(np.int8)
    m = made(
        [node("MatMulInteger", ["x", "w"], ["y"])], {"x": (TensorProto.UINT8, [2, 3, 8])},
        {"y": TensorProto.INT32}, {"w": w},
    )  # fmt: skip
    assert {why for _, why in superopt.compile(m).fallback_nodes({})} == {INTEGER_PRODUCT_REASON}


def test_processors_without_instructions_for_integers_leave_them_to_onnxruntime(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(code_generator, "integer_instructions", lambda machine: "")
    exe = superopt.compile(quantized(weights_only=False), specialize="eager")
    assert {why for _, why in exe.fallback_nodes({"n": 2})} == {INTEGER_PRODUCT_REASON}


def test_products_of_two_variable_matrices_of_integers_run_in_onnxruntime() -> None:
    m = made(
        [node("MatMulInteger", ["x", "z"], ["y"])],
        {"x": (TensorProto.UINT8, [3, 8]), "z": (TensorProto.INT8, [8, 4])},
        {"y": TensorProto.INT32}, {},
    )  # fmt: skip
    assert {why for _, why in superopt.compile(m).fallback_nodes({})} == {INTEGER_PRODUCT_REASON}
