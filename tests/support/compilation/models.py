"""Small models, and what onnxruntime computes of them."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from superopt import ort

Model = onnx.ModelProto
F, I = TensorProto.FLOAT, TensorProto.INT64  # noqa: E741


def model(nodes: list, inputs: dict, outputs: list[str], weights: dict | None = None) -> Model:
    given = [helper.make_tensor_value_info(n, *t) for n, t in inputs.items()]
    out = [onnx.ValueInfoProto(name=n) for n in outputs]
    known = [numpy_helper.from_array(a, n) for n, a in (weights or {}).items()]
    graph = helper.make_graph(nodes, "g", given, out, known)
    graph = onnx.shape_inference.infer_shapes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    ).graph
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def net(size: int | str = 9) -> Model:
    """Convolutions with a border, a residual, a concatenation, a pool, and a product."""
    rng = np.random.default_rng(0)
    conv = {f"w{k}": rng.standard_normal(s).astype(np.float32) / 8 for k, s in enumerate(
        [(16, 3, 3, 3), (16, 16, 3, 3), (24, 16, 1, 1), (24, 1, 3, 3), (40, 10)])}  # fmt: skip
    node = helper.make_node
    return model(
        [
            node("Conv", ["x", "w0"], ["a"], pads=[1] * 4),
            node("Relu", ["a"], ["b"]),
            node("Conv", ["b", "w1"], ["c"], pads=[1] * 4),
            node("Add", ["c", "b"], ["d"]),
            node("Conv", ["d", "w2"], ["e"]),
            node("Conv", ["e", "w3"], ["f"], pads=[1] * 4, group=24),
            node("Concat", ["f", "d"], ["g"], axis=1),
            node("MaxPool", ["g"], ["h"], kernel_shape=[2, 2], strides=[2, 2], pads=[0, 1, 1, 0]),
            node("GlobalAveragePool", ["h"], ["i"]),
            node("Flatten", ["i"], ["j"]),
            node("MatMul", ["j", "w4"], ["k"]),
            node("Softmax", ["k"], ["y"]),
        ],
        {"x": (F, ["n", 3, size, size])},
        ["y", "d"],
        conv,
    )


def picture(n: int, size: int) -> np.ndarray:
    return np.random.default_rng(n).standard_normal((n, 3, size, size)).astype(np.float32)


def near(got: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    assert list(got) == list(wanted)
    for name, b in wanted.items():
        a = got[name]
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        scale = float(np.sqrt(np.mean(np.square(b, dtype=np.float64)))) if b.size else 0.0
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5 * scale)


def reference(m: Model, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return ort.run(ort.load_session(m.SerializeToString()), feeds)


def in_parts() -> Model:
    """A product, and one node of onnxruntime's."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("NonZero", ["a"], ["z"]),
        helper.make_node("Relu", ["a"], ["y"]),
    ]
    w = np.random.default_rng(0).standard_normal((9, 9000)).astype(np.float32)
    return model(nodes, {"x": (F, [1, 3, 9, 9])}, ["y", "z"], {"w": w})


def matmul() -> Model:
    return model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        {"x": (F, ["n", 4])},
        ["y"],
        {"w": np.arange(8, dtype=np.float32).reshape(4, 2)},
    )


def partly_foreign() -> onnx.ModelProto:
    """NonZero has no kernel; the product has enough to do for one of its own."""
    w = np.random.default_rng(0).standard_normal((9, 900)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("NonZero", ["a"], ["y"]),
        helper.make_node("Relu", ["a"], ["z"]),
    ]
    return model(nodes, {"x": (F, [200, 9])}, ["y", "z"], {"w": w})


NONE = ("first", "last", "turned", "mean", "joined")


def of_none(name: str) -> onnx.ModelProto:
    """Of n rows: shapes are other ones where there are none than what is said of 1 and more."""
    node = helper.make_node
    nodes = {
        "first": [node("Slice", ["x", "zero", "one", "zero"], ["a"])],
        "last": [node("Slice", ["x", "less", "far", "zero"], ["a"])],
        "turned": [node("Transpose", ["x"], ["t"], perm=[1, 0]), node("Softmax", ["t"], ["a"])],
        "mean": [node("ReduceSum", ["x", "zero"], ["s"]), node("Add", ["x", "s"], ["a"])],
        "joined": [node("Slice", ["x", "less", "far", "zero"], ["s"]),
                   node("Concat", ["x", "s"], ["a"], axis=0)],
    }[name]  # fmt: skip
    known = {"zero": np.array([0]), "one": np.array([1]), "less": np.array([-1]),
             "far": np.array([2**40])}  # fmt: skip
    known = {k: v for k, v in known.items() if any(k in n.input for n in nodes)}
    return model([*nodes, node("Tanh", ["a"], ["y"])], {"x": (F, ["n", 4])}, ["y"], known)


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)
