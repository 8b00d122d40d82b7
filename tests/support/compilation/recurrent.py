"""Recurrent layers, and the loops that they are compiled to."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

import superopt
from superopt.compilation.cpu.native_segment import NativeSegment
from superopt.kernels.llvm.calls import Loop
from superopt.plan.graph.recurrent_layer import GATES

USUAL = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}


def recurrent(
    kind: str, steps: int = 5, batch: int = 3, size: int = 6, hidden: int = 9, bias: bool = True,
    direction: str = "forward", states: bool = False, lengths: bool = False, named: bool = False,
    **attrs: Any,
) -> onnx.ModelProto:  # fmt: skip
    rng = np.random.default_rng(0)
    d, n = 1 + (direction == "bidirectional"), GATES[kind]

    def drawn(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) * 0.5).astype(np.float32)

    known = {"w": drawn(d, n * hidden, size), "r": drawn(d, n * hidden, hidden)}
    inputs = {"x": (steps, batch, size)}
    given = ["x", "w", "r", "", "", "", ""]
    if bias:
        known["b"], given[3] = drawn(d, 2 * n * hidden), "b"
    if lengths:
        known["l"], given[4] = np.full(batch, steps, np.int32), "l"
    if states:
        inputs["h"], given[5] = (d, batch, hidden), "h"
        if kind == "LSTM":
            inputs["c"], given[6] = (d, batch, hidden), "c"
    while not given[-1]:
        given.pop()
    outputs = ["y", "yh", "yc"][: 3 if kind == "LSTM" else 2]
    if named:
        attrs["activations"] = USUAL[kind] * d
    node = helper.make_node(kind, given, outputs, hidden_size=hidden, direction=direction, **attrs)
    float_ = TensorProto.FLOAT
    graph = helper.make_graph(
        [node], "recurrent",
        [helper.make_tensor_value_info(k, float_, s) for k, s in inputs.items()],
        [helper.make_tensor_value_info(k, float_, None) for k in outputs],
        [onnx.numpy_helper.from_array(v, k) for k, v in known.items()],
    )  # fmt: skip
    m = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    found = onnx.shape_inference.infer_shapes(m)
    onnx.checker.check_model(found, full_check=True)
    return found


def feeds(m: onnx.ModelProto) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    known = {t.name for t in m.graph.initializer}
    return {
        i.name: rng.standard_normal([d.dim_value for d in i.type.tensor_type.shape.dim]).astype(
            np.float32
        )
        for i in m.graph.input
        if i.name not in known
    }


def loops(exe: superopt.Executable, sizes: dict[str, int] | None = None) -> list[Loop]:
    steps = exe.variant(sizes or {})
    native = [s for s in steps if isinstance(s, NativeSegment)]
    return [c for s in native for c in s.code.program.calls if isinstance(c, Loop)]
