"""Models of sequences whose length, and number, are symbolic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from superopt.plan.graph.recurrent_layer import GATES

Dim = int | str
Inputs = dict[str, tuple[int, Sequence[Dim]]]
FLOAT = TensorProto.FLOAT


def sequence_model(
    nodes: Sequence[onnx.NodeProto], inputs: Inputs, outputs: Sequence[str],
    weights: Mapping[str, np.ndarray], opset: int = 17,
    shapes: Mapping[str, Sequence[Dim | None]] | None = None,
) -> onnx.ModelProto:  # fmt: skip
    """Return a model. shapes: of outputs, where they are not inferred."""
    known = shapes or {}
    graph = helper.make_graph(
        list(nodes), "sequences",
        [helper.make_tensor_value_info(k, kind, shape) for k, (kind, shape) in inputs.items()],
        [helper.make_tensor_value_info(k, FLOAT, known.get(k)) for k in outputs],
        [numpy_helper.from_array(v, k) for k, v in weights.items()],
    )  # fmt: skip
    m = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    return onnx.shape_inference.infer_shapes(m)


def draw(*shape: int, scale: float = 0.3) -> np.ndarray:
    rng = np.random.default_rng(shape)
    return (rng.standard_normal(shape) * scale).astype(np.float32)


def recurrent_weights(
    name: str, kind: str, size: int, hidden: int, directions: int
) -> dict[str, np.ndarray]:
    n = GATES[kind] * hidden
    return {
        f"{name}w": draw(directions, n, size), f"{name}r": draw(directions, n, hidden),
        f"{name}b": draw(directions, 2 * n),
    }  # fmt: skip


def recurrent_layer(
    name: str, kind: str, x: str, y: str, size: int, hidden: int, weights: dict[str, np.ndarray],
    direction: str = "forward",
) -> onnx.NodeProto:  # fmt: skip
    """Return a layer, and add its weights."""
    weights |= recurrent_weights(name, kind, size, hidden, 1 + (direction == "bidirectional"))
    given = [x, *(f"{name}{k}" for k in "wrb")]
    return helper.make_node(kind, given, [y], hidden_size=hidden, direction=direction)


def text_recognizer(batch: Dim = 1) -> onnx.ModelProto:
    """Convolutions over an image of any width, two bidirectional LSTMs, and scores of letters, as
    they are trained with the CTC loss."""
    w: dict[str, np.ndarray] = {
        "w1": draw(8, 1, 3, 3), "w2": draw(16, 8, 3, 3), "w3": draw(24, 16, 3, 3),
        "columns": np.array([0, 0, 40]), "height": np.array([2]),
        "letters": draw(40, 37), "bias": draw(37),
    }  # fmt: skip
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w1"], ["a"], pads=[1] * 4, strides=[2, 2]),
        node("Relu", ["a"], ["b"]),
        node("Conv", ["b", "w2"], ["c"], pads=[1] * 4, strides=[2, 2]),
        node("Relu", ["c"], ["d"]),
        node("Conv", ["d", "w3"], ["e"], pads=[1] * 4, strides=[2, 1]),
        node("MaxPool", ["e"], ["f"], kernel_shape=[2, 1], strides=[2, 1]),
        node("Squeeze", ["f", "height"], ["g"]),
        node("Transpose", ["g"], ["h"], perm=[2, 0, 1]),
        recurrent_layer("first", "LSTM", "h", "i", 24, 20, w, "bidirectional"),
        node("Transpose", ["i"], ["j"], perm=[0, 2, 1, 3]),
        node("Reshape", ["j", "columns"], ["k"]),
        recurrent_layer("second", "LSTM", "k", "l", 40, 20, w, "bidirectional"),
        node("Transpose", ["l"], ["m"], perm=[0, 2, 1, 3]),
        node("Reshape", ["m", "columns"], ["n"]),
        node("MatMul", ["n", "letters"], ["o"]),
        node("Add", ["o", "bias"], ["p"]),
        node("LogSoftmax", ["p"], ["y"], axis=-1),
    ]
    return sequence_model(nodes, {"x": (FLOAT, (batch, 1, 16, "width"))}, ["y"], w)


def audio_net(batch: Dim = 1) -> onnx.ModelProto:
    """Convolutions over time, an LSTM and a GRU in reverse."""
    w: dict[str, np.ndarray] = {
        "w1": draw(24, 20, 3), "w2": draw(32, 24, 3), "axis": np.array([1]), "out": draw(24, 10)
    }  # fmt: skip
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w1"], ["a"], pads=[1, 1]),
        node("Relu", ["a"], ["b"]),
        node("Conv", ["b", "w2"], ["c"], pads=[1, 1], strides=[2]),
        node("Relu", ["c"], ["d"]),
        node("Transpose", ["d"], ["e"], perm=[2, 0, 1]),
        recurrent_layer("lstm", "LSTM", "e", "f", 32, 24, w),
        node("Squeeze", ["f", "axis"], ["g"]),
        recurrent_layer("gru", "GRU", "g", "h", 24, 24, w, "reverse"),
        node("Squeeze", ["h", "axis"], ["i"]),
        node("MatMul", ["i", "out"], ["j"]),
        node("Transpose", ["j"], ["y"], perm=[1, 0, 2]),
    ]
    return sequence_model(nodes, {"x": (FLOAT, (batch, 20, "time"))}, ["y"], w)


def scan_cell(batch: Dim = 1, opset: int = 17, **attrs: Any) -> onnx.ModelProto:
    """A cell with two states as a Scan over time, whose body also reads what is computed before."""
    w = {"w": draw(12, 16), "u": draw(16, 16), "start": np.zeros((1, 16), np.float32)}
    node = helper.make_node
    axes = {"scan_input_axes": [0], "scan_output_axes": [0]} | attrs
    body = helper.make_graph(
        [
            node("MatMul", ["h", "u"], ["a"]),
            node("Add", ["a", "x_t"], ["b"]),
            node("Tanh", ["b"], ["h1"]),
            node("Mul", ["h1", "shift"], ["m"]),
            node("Add", ["s", "m"], ["s1"]),
            node("Identity", ["s1"], ["y_t"]),
        ],
        "body",
        [helper.make_tensor_value_info(k, FLOAT, None) for k in ("h", "s", "x_t")],
        [helper.make_tensor_value_info(k, FLOAT, None) for k in ("h1", "s1", "y_t")],
    )
    nodes = [
        node("MatMul", ["x", "w"], ["xw"]),
        node("ReduceMean", ["xw"], ["mean"], axes=[0], keepdims=0),
        node("Sigmoid", ["mean"], ["shift"]),
        node("Mul", ["shift", "start"], ["zeros"]),
        node("Scan", ["zeros", "zeros", "xw"], ["hn", "sn", "ys"], body=body, num_scan_inputs=1,
             **axes),
        node("Relu", ["ys"], ["y"]),
    ]  # fmt: skip
    return sequence_model(nodes, {"x": (FLOAT, ("time", batch, 12))}, ["y", "hn", "sn"], w, opset)


def gated_loop(width: int = 64, rows: Dim = 1) -> onnx.ModelProto:
    """A gated recurrent cell as a Loop whose number of steps is an input."""
    known = {
        "w": draw(width, 2 * width, scale=0.1), "u": draw(width, 2 * width, scale=0.1),
        "v": draw(width, width, scale=0.1), "zero": np.array([0]), "middle": np.array([width]),
        "end": np.array([2 * width]), "axis": np.array([1]),
    }  # fmt: skip
    node, info = helper.make_node, helper.make_tensor_value_info
    body = helper.make_graph(
        [
            node("MatMul", ["h", "u"], ["hu"]),
            node("Add", ["hu", "xw"], ["g"]),
            node("Sigmoid", ["g"], ["s"]),
            node("Slice", ["s", "zero", "middle", "axis"], ["r"]),
            node("Slice", ["s", "middle", "end", "axis"], ["i"]),
            node("Mul", ["r", "h"], ["rh"]),
            node("MatMul", ["rh", "v"], ["n"]),
            node("Tanh", ["n"], ["m"]),
            node("Sub", ["h", "m"], ["d"]),
            node("Mul", ["i", "d"], ["id"]),
            node("Add", ["id", "m"], ["h1"]),
            node("Identity", ["h1"], ["y_t"]),
            node("Identity", ["going"], ["goes"]),
        ],
        "body",
        [info("number", TensorProto.INT64, []), info("going", TensorProto.BOOL, []),
         info("h", FLOAT, None)],
        [info("goes", TensorProto.BOOL, []), info("h1", FLOAT, None), info("y_t", FLOAT, None)],
    )  # fmt: skip
    nodes = [
        node("MatMul", ["x", "w"], ["xw"]),
        node("Loop", ["steps", "", "x"], ["last", "ys"], body=body),
    ]
    inputs: Inputs = {"x": (FLOAT, (rows, width)), "steps": (TensorProto.INT64, ())}
    shapes = {"last": (rows, width), "ys": (None, rows, width)}
    return sequence_model(nodes, inputs, [*shapes], known, shapes=shapes)
