"""Models with branches, whose sizes are symbolic."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.support.compilation.sequence_models import FLOAT, draw, sequence_model

RATES = {True: 16000, False: 8000}
WINDOWS = {True: 256, False: 128}  # samples of a frame


def value(name: str, kind: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, None)


def branch(nodes: Sequence[onnx.NodeProto], outputs: Sequence[str]) -> onnx.GraphProto:
    return helper.make_graph(list(nodes), "branch", [], [value(k) for k in outputs])


def voice_detector(hidden: int = 64) -> onnx.ModelProto:
    """A detector of speech: inputs are samples, the states of an LSTM and the sampling rate, which
    an If tests. A branch has a short-time Fourier transform as a convolution, four convolutions,
    one step of the LSTM for the last frame, and a probability.
    """
    weights: dict[str, np.ndarray] = {
        "wide": np.array(RATES[True]), "last": np.array([-1]), "time": np.array([2]),
        "first": np.array([0]), "one": np.array([1]), "two": np.array([2]),
        "end": np.array([2**40]),
    }  # fmt: skip
    node = helper.make_node
    branches = {
        taken: branch(_detector(taken, hidden, weights), ["p", "next"]) for taken in (True, False)
    }
    nodes = [
        node("Equal", ["rate", "wide"], ["is_wide"]),
        node("If", ["is_wide"], ["probability", "next_state"],
             then_branch=branches[True], else_branch=branches[False]),
    ]  # fmt: skip
    inputs = {
        "samples": (FLOAT, ("batch", "length")), "state": (FLOAT, (2, "batch", hidden)),
        "rate": (TensorProto.INT64, ()),
    }  # fmt: skip
    shapes = {"probability": ("batch", 1), "next_state": (2, "batch", hidden)}
    return sequence_model(nodes, inputs, [*shapes], weights, shapes=shapes)


def _detector(is_wide: bool, hidden: int, weights: dict[str, np.ndarray]) -> list[onnx.NodeProto]:
    """Return the nodes of a branch from `samples` and `state` to `p` and `next`; add weights."""
    window, prefix = WINDOWS[is_wide], "w" if is_wide else "n"
    bins = window // 2 + 1
    channels = (bins, 128, 64, 64, hidden)
    angle = 2 * np.pi * np.outer(np.arange(bins), np.arange(window)) / window
    both = np.concatenate([np.cos(angle), np.sin(angle)]) * np.hanning(window) / 16
    own = {"basis": both[:, None].astype(np.float32)}
    for k, (a, b) in enumerate(pairwise(channels)):
        own |= {f"k{k}": draw(b, a, 3, scale=0.5 / np.sqrt(a)), f"b{k}": draw(b)}
    own |= {
        "W": draw(1, 4 * hidden, hidden, scale=0.1),
        "R": draw(1, 4 * hidden, hidden, scale=0.1),
    }
    own |= {"B": draw(1, 8 * hidden), "out": draw(hidden, 1), "bins": np.array([bins])}
    weights |= {f"{prefix}_{k}": x for k, x in own.items()}
    node = helper.make_node

    def w(name: str) -> str:
        return f"{prefix}_{name}"

    nodes = [
        node("Unsqueeze", ["samples", "one"], ["x"]),
        node(
            "Conv", ["x", w("basis")], ["spectrum"], strides=[window // 2], pads=[window // 2] * 2
        ),
        node("Slice", ["spectrum", "first", w("bins"), "one"], ["re"]),
        node("Slice", ["spectrum", w("bins"), "end", "one"], ["im"]),
        node("Mul", ["re", "re"], ["re2"]),
        node("Mul", ["im", "im"], ["im2"]),
        node("Add", ["re2", "im2"], ["power"]),
        node("Sqrt", ["power"], ["h0"]),
    ]
    for k in range(4):
        strides = [2 if k in (1, 2) else 1]
        conv = [f"h{k}", w(f"k{k}"), w(f"b{k}")]
        nodes.append(node("Conv", conv, [f"c{k}"], strides=strides, pads=[1, 1]))
        nodes.append(node("Relu", [f"c{k}"], [f"h{k + 1}"]))
    return [
        *nodes,
        node("Slice", ["h4", "last", "end", "time"], ["frame"]),
        node("Transpose", ["frame"], ["step"], perm=[2, 0, 1]),
        node("Slice", ["state", "first", "one", "first"], ["h"]),
        node("Slice", ["state", "one", "two", "first"], ["c"]),
        node("LSTM", ["step", w("W"), w("R"), w("B"), "", "h", "c"], ["y", "yh", "yc"],
             hidden_size=hidden),
        node("Concat", ["yh", "yc"], ["next"], axis=0),
        node("Squeeze", ["yh", "first"], ["flat"]),
        node("Relu", ["flat"], ["active"]),
        node("MatMul", ["active", w("out")], ["score"]),
        node("Sigmoid", ["score"], ["p"]),
    ]  # fmt: skip


def detector_inputs(batch: int, length: int, rate: int, hidden: int = 64) -> dict[str, np.ndarray]:
    return {
        "samples": draw(batch, length, scale=1), "state": draw(2, batch, hidden, scale=1),
        "rate": np.array(rate, np.int64),
    }  # fmt: skip


def gated_model(condition: str, rows: str | int = "n") -> onnx.ModelProto:
    """A product in one branch, another If in the other one. condition: name of the outer If's."""
    node = helper.make_node
    inner = node(
        "If", ["flag"], ["b"],
        then_branch=branch([node("Exp", ["x"], ["c"])], ["c"]),
        else_branch=branch([node("Neg", ["x"], ["d"])], ["d"]),
    )  # fmt: skip
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "zero"], ["count"]),
        node("Greater", ["count", "four"], ["many"]),
        node("ReduceSum", ["x"], ["sum"], keepdims=0),
        node("Greater", ["sum", "none"], ["positive"]),
        node("If", [condition], ["a"],
             then_branch=branch([node("MatMul", ["x", "w"], ["e"])], ["e"]),
             else_branch=branch([inner], ["b"])),
        node("Add", ["a", "x"], ["y"]),
    ]  # fmt: skip
    known = {
        "zero": np.array(0), "four": np.array(4), "none": np.array(0, np.float32),
        "w": draw(24, 24), "always": np.array(True), "never": np.array(False),
    }  # fmt: skip
    inputs = {"x": (FLOAT, (rows, 24)), "flag": (TensorProto.BOOL, ())}
    return sequence_model(nodes, inputs, ["y"], known, shapes={"y": (rows, 24)})


def gate_inputs(n: int, flag: bool, sign: float = 1.0) -> dict[str, np.ndarray]:
    return {"x": sign * np.abs(draw(n, 24)), "flag": np.array(flag)}
