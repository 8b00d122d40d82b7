"""Small ONNX models for the tests of this folder."""

from collections.abc import Sequence

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def value(name: str, dtype: int, shape: Sequence[int | str] | None) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def model(
    nodes: Sequence[NodeProto],
    inputs: Sequence[ValueInfoProto],
    outputs: Sequence[ValueInfoProto],
    constants: dict[str, object] | None = None,
) -> ModelProto:
    initializers = [
        numpy_helper.from_array(np.asarray(array), name)
        for name, array in (constants or {}).items()
    ]
    graph = helper.make_graph(list(nodes), "g", list(inputs), list(outputs), initializers)
    opset = [helper.make_opsetid("", 21)]
    return helper.make_model(graph, opset_imports=opset, ir_version=10)


def single(
    op: str,
    inputs: dict[str, tuple[int, Sequence[int | str] | None]],
    out: int = FLOAT,
    constants: dict[str, object] | None = None,
    **attributes: object,
) -> bytes:
    """A model of one node, its output `y`."""
    node = helper.make_node(op, [*inputs, *(constants or {})], ["y"], **attributes)
    ports = [value(name, dtype, shape) for name, (dtype, shape) in inputs.items()]
    return model([node], ports, [value("y", out, None)], constants).SerializeToString()


def matmul(n: int) -> bytes:
    """a f32[n, n] times b f32[n, n]."""
    return single("MatMul", {"a": (FLOAT, [n, n]), "b": (FLOAT, [n, n])})


def matmuls(n: int, times: int) -> bytes:
    """a f32[n, n], multiplied `times` times with b f32[n, n]."""
    names = ["a", *(f"t{i}" for i in range(1, times)), "y"]
    nodes = [helper.make_node("MatMul", [names[i], "b"], [names[i + 1]]) for i in range(times)]
    ports = [value("a", FLOAT, [n, n]), value("b", FLOAT, [n, n])]
    return model(nodes, ports, [value("y", FLOAT, [n, n])]).SerializeToString()


def endless() -> bytes:
    """A loop of 10^15 rounds over x f32[1]."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["go_out"]),
            helper.make_node("Neg", ["v"], ["v_out"]),
        ],
        "body",
        [value("i", INT64, []), value("go", TensorProto.BOOL, []), value("v", FLOAT, [1])],
        [value("go_out", TensorProto.BOOL, []), value("v_out", FLOAT, [1])],
    )
    node = helper.make_node("Loop", ["count", "", "x"], ["y"], body=body)
    constants: dict[str, object] = {"count": np.int64(10**15)}
    ports = [value("x", FLOAT, [1])], [value("y", FLOAT, [1])]
    return model([node], *ports, constants).SerializeToString()


def pad_before_weight() -> bytes:
    """Valid, but onnxruntime's optimizer folds the Pad and leaves its output without a node."""
    return model(
        [
            helper.make_node("Pad", ["w", "pads"], ["padded"]),
            helper.make_node("Conv", ["x", "padded"], ["y"]),
        ],
        [value("x", FLOAT, [1, 3, 8, 8])],
        [value("y", FLOAT, None)],
        {"w": np.ones((4, 3, 3, 3), np.float32), "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1])},
    ).SerializeToString()
