"""DynamicQuantizeLSTM against its definition: ONNX Runtime's products of integers, in float64."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import superopt

Array = np.ndarray


def rounded_product(x: Array, w: Array, scale: Array, zero: Array) -> Array:
    """The product of float rows, quantized together, and of integers."""
    low, high = min(float(x.min()), 0.0), max(float(x.max()), 0.0)
    step = np.float32((high - low) / 255) if high > low else np.float32(1)
    middle = np.rint(np.clip(-low / step, 0, 255))
    q = np.clip(np.rint((x / step).astype(np.float32)) + middle, 0, 255)
    return np.asarray((q - middle) @ (w.astype(float) - zero) * (step * scale.astype(float)))


def define_layer(x: Array, held: dict[str, Array], hidden: int) -> tuple[Array, Array, Array]:
    """Y, Y_h and Y_c of one sequence."""
    directions = held["w"].shape[0]
    y = np.zeros((len(x), directions, 1, hidden))
    last = np.zeros((2, directions, 1, hidden))
    for d in range(directions):
        of_w, of_r = (
            (held[k][d], held[f"{k}s"][d], held[f"{k}z"][d].astype(float)) for k in ("w", "r")
        )
        given = rounded_product(x[:, 0].astype(float), *of_w)
        given += held["b"][d, : 4 * hidden] + held["b"][d, 4 * hidden :].astype(float)
        h, c = (np.zeros((1, hidden)) for _ in range(2))
        for t in range(len(x))[:: -1 if d else 1]:
            gates = given[t] + rounded_product(h, *of_r)
            i, o, f, g = np.split(gates, 4, axis=1)
            i, o, f = (1 / (1 + np.exp(-v)) for v in (i, o, f))
            c = f * c + i * np.tanh(g)
            h = y[t, d] = o * np.tanh(c)
        last[:, d] = h, c
    return y, last[0], last[1]


def layer_model(
    steps: int | str, size: int, hidden: int, direction: str, columns: bool, batch: int = 1
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """The model, and its constants. columns: scales and zero points are of columns."""
    rng = np.random.default_rng([hidden, columns])
    count = 2 if direction == "bidirectional" else 1
    own = (count, 4 * hidden) if columns else (count,)
    held: dict[str, Array] = {}
    for k, rows in (("w", size), ("r", hidden)):
        held[k] = rng.integers(-128, 128, (count, rows, 4 * hidden)).astype(np.int8)
        held[f"{k}s"] = (rng.uniform(0.5, 1, own) / (74 * rows**0.5)).astype(np.float32)
        held[f"{k}z"] = rng.integers(-3, 4, own).astype(np.int8)
    held["b"] = (0.1 * rng.standard_normal((count, 8 * hidden))).astype(np.float32)
    inputs = ["x", "w", "r", "b", "", "", "", "", "ws", "wz", "rs", "rz"]
    node = helper.make_node(
        "DynamicQuantizeLSTM", inputs, ["y", "h", "c"], domain="com.microsoft",
        hidden_size=hidden, direction=direction,
    )  # fmt: skip
    shapes = {
        "y": [steps, count, batch, hidden], "h": [count, batch, hidden], "c": [count, batch, hidden]
    }  # fmt: skip
    x, *made = (
        helper.make_tensor_value_info(n, TensorProto.FLOAT, s)
        for n, s in {"x": [steps, batch, size], **shapes}.items()
    )
    graph = helper.make_graph(
        [node], "g", [x], made, [numpy_helper.from_array(v, k) for k, v in held.items()]
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8), held


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize(
    ("steps", "size", "hidden", "direction"),
    [(3, 20, 16, "forward"), (4, 7, 24, "bidirectional"), (30, 33, 32, "bidirectional")],
    ids=["unrolled", "unrolled both ways", "loop"],
)
def test_layer_of_integers_has_the_results_of_its_definition(
    steps: int, size: int, hidden: int, direction: str, columns: bool
) -> None:
    """A state near the middle of two steps may become either, which adds 1/255 of a weight."""
    m, held = layer_model(steps, size, hidden, direction, columns)
    exe = superopt.compile(m, threads=1)
    x = np.random.default_rng(1).standard_normal((steps, 1, size)).astype(np.float32)
    got = exe.run({"x": x})
    assert exe.fallback_nodes({}) == []
    for name, wanted in zip("yhc", define_layer(x, held, hidden), strict=True):
        off = np.abs(got[name] - wanted)
        assert np.median(off) < 1e-6
        assert off.max() < 4e-3
        assert wanted.std() > 0.02


def test_layer_of_integers_takes_any_number_of_steps() -> None:
    m, held = layer_model("time", 20, 16, "forward", False)
    exe = superopt.compile(m, threads=1)
    for steps in (1, 5, 19):
        x = np.random.default_rng(steps).standard_normal((steps, 1, 20)).astype(np.float32)
        off = np.abs(exe.run({"x": x})["y"] - define_layer(x, held, 16)[0])
        assert np.median(off) < 1e-6
        assert off.max() < 4e-3


def test_several_sequences_run_in_onnxruntime() -> None:
    """It quantizes them together, or by thread."""
    m, _ = layer_model(5, 20, 16, "forward", False, batch=2)
    exe = superopt.compile(m, threads=1)
    (found,) = exe.fallback_nodes({})
    assert "several sequences, which onnxruntime quantizes by threads" in str(found)
