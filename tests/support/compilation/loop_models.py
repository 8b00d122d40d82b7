"""Models with a loop whose number of steps is known only in a call."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.support.compilation.classes import Feeds
from tests.support.compilation.sequence_models import FLOAT, Dim, draw, sequence_model

HIDDEN = 96
BOOL, INT = TensorProto.BOOL, TensorProto.INT64
node = helper.make_node


def loop_body(
    nodes: Sequence[onnx.NodeProto], states: Sequence[str], outputs: Sequence[str]
) -> onnx.GraphProto:
    """Return a body; its inputs are `number`, `going` and the states, its first output `goes`."""
    info = helper.make_tensor_value_info
    inputs = [info("number", INT, []), info("going", BOOL, [])]
    inputs += [info(k, FLOAT, None) for k in states]
    made = [info("goes", BOOL, []), *(info(k, FLOAT, None) for k in outputs)]
    return helper.make_graph(list(nodes), "step", inputs, made)


def cell(count: str, condition: str = "", rows: Dim = "n") -> onnx.ModelProto:
    """A cell whose step reads the model's input and the step's number; around it a product."""
    body = loop_body(
        [
            node("MatMul", ["h", "u"], ["a"]),
            node("Add", ["a", "z"], ["b"]),
            node("Cast", ["number"], ["f"], to=FLOAT),
            node("Mul", ["f", "tenth"], ["g"]),
            node("Add", ["b", "g"], ["c"]),
            node("Tanh", ["c"], ["h1"]),
            node("ReduceSum", ["h1"], ["s"], keepdims=0),
            node("Less", ["s", "limit"], ["goes"]),
            node("Relu", ["h1"], ["y_t"]),
        ],
        ["h"], ["h1", "y_t"],
    )  # fmt: skip
    nodes = [
        node("MatMul", ["x", "w"], ["z"]),
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "zero"], ["size"]),
        node("ReduceMax", ["x"], ["top"], keepdims=0),
        node("Greater", ["top", "tenth"], ["some"]),
        node("Loop", [count, condition, "z"], ["last", "ys"], body=body),
        node("ReduceSum", ["ys", "axis"], ["total"], keepdims=0),
        node("Add", ["total", "last"], ["t"]),
        node("MatMul", ["t", "w"], ["y"]),
    ]
    known = {
        "w": draw(HIDDEN, HIDDEN, scale=0.1), "u": draw(HIDDEN, HIDDEN, scale=0.1),
        "tenth": np.array(0.1, np.float32), "zero": np.array(0), "axis": np.array([0]),
        "limit": np.array(1e9 if condition != "some" else 40, np.float32),
        "many": np.array(2**40),
    }  # fmt: skip
    inputs = {"x": (FLOAT, (rows, HIDDEN)), "steps": (INT, ())}
    shapes = {"y": (rows, HIDDEN), "last": (rows, HIDDEN)}
    return sequence_model(nodes, inputs, [*shapes], known, shapes=shapes)


def cell_inputs(n: int, steps: int) -> Feeds:
    return {"x": draw(n, HIDDEN, scale=1), "steps": np.array(steps)}
