"""Networks for sequences of any length, with random weights, at the sizes of published ones."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import onnx
from onnx import helper

from tests.support.compilation.sequence_models import FLOAT, recurrent_layer, sequence_model

# Channels, then whether pooling halves both axes (2), the height (1) or none (0): Shi, Bai and Yao,
# An end-to-end trainable neural network for image-based sequence recognition, 2015, table 1,
# without batch normalization.
RECOGNIZER_STAGES = ((64, 2), (128, 2), (256, 0), (256, 1), (512, 0), (512, 1))
LETTERS = 37
HIDDEN = 256
FEATURES = 80  # of a frame of audio


def _weight(*shape: int) -> np.ndarray:
    """Return weights that keep the scale of what they multiply."""
    rng = np.random.default_rng(shape)
    terms = int(np.prod(shape[1:])) if len(shape) > 2 else shape[0]
    return (rng.standard_normal(shape) / np.sqrt(terms)).astype(np.float32)


def _recurrent_stack(
    x: str, size: int, layers: int, weights: dict[str, np.ndarray]
) -> tuple[list[onnx.NodeProto], str]:
    """Return bidirectional LSTMs over [time, batch, size], and the name of their result."""
    nodes = []
    weights["joined"] = np.array([0, 0, 2 * HIDDEN])
    for n in range(layers):
        made = recurrent_layer(f"l{n}", "LSTM", x, f"y{n}", size, HIDDEN, weights, "bidirectional")
        for k in ("w", "r"):
            weights[f"l{n}{k}"] *= 1 / (0.3 * np.sqrt(HIDDEN))
        nodes += [
            made,
            helper.make_node("Transpose", [f"y{n}"], [f"t{n}"], perm=[0, 2, 1, 3]),
            helper.make_node("Reshape", [f"t{n}", "joined"], [f"r{n}"]),
        ]
        x, size = f"r{n}", 2 * HIDDEN
    return nodes, x


def _scores(x: str, weights: dict[str, np.ndarray]) -> list[onnx.NodeProto]:
    """Return log probabilities of letters, as the CTC loss takes them."""
    weights |= {"letters": _weight(2 * HIDDEN, LETTERS), "bias": _weight(LETTERS, 1)[:, 0]}
    return [
        helper.make_node("MatMul", [x, "letters"], ["products"]),
        helper.make_node("Add", ["products", "bias"], ["logits"]),
        helper.make_node("LogSoftmax", ["logits"], ["y"], axis=-1),
    ]


def text_recognizer() -> onnx.ModelProto:
    """Return a recognizer of text lines of 32 rows and any width."""
    weights: dict[str, np.ndarray] = {"height": np.array([2])}
    nodes, x = [], "x"
    channels = (1, *(c for c, _ in RECOGNIZER_STAGES))
    for n, (below, above) in enumerate(pairwise(channels)):
        weights[f"c{n}"], weights[f"b{n}"] = _weight(above, below, 3, 3), _weight(above, 1)[:, 0]
        nodes += [
            helper.make_node("Conv", [x, f"c{n}", f"b{n}"], [f"conv{n}"], pads=[1] * 4),
            helper.make_node("Relu", [f"conv{n}"], [f"relu{n}"]),
        ]
        x = f"relu{n}"
        if pooling := RECOGNIZER_STAGES[n][1]:
            step = [2, pooling]
            nodes.append(
                helper.make_node("MaxPool", [x], [f"pool{n}"], kernel_shape=step, strides=step)
            )
            x = f"pool{n}"
    weights["last"], weights["last_bias"] = _weight(512, 512, 2, 2), _weight(512, 1)[:, 0]
    nodes += [
        helper.make_node("Conv", [x, "last", "last_bias"], ["last_conv"]),
        helper.make_node("Relu", ["last_conv"], ["last_relu"]),
        helper.make_node("Squeeze", ["last_relu", "height"], ["columns"]),
        helper.make_node("Transpose", ["columns"], ["steps"], perm=[2, 0, 1]),
    ]
    recurrent, y = _recurrent_stack("steps", 512, 2, weights)
    nodes += [*recurrent, *_scores(y, weights)]
    return sequence_model(nodes, {"x": (FLOAT, (1, 1, 32, "width"))}, ["y"], weights)


def audio_net() -> onnx.ModelProto:
    """Return a speech recognizer: two convolutions over frames, three bidirectional LSTMs."""
    weights: dict[str, np.ndarray] = {}
    nodes, x, size = [], "x", FEATURES
    for n, stride in enumerate((1, 2)):
        weights[f"c{n}"], weights[f"b{n}"] = _weight(HIDDEN, size, 5), _weight(HIDDEN, 1)[:, 0]
        nodes += [
            helper.make_node(
                "Conv", [x, f"c{n}", f"b{n}"], [f"conv{n}"], pads=[2, 2], strides=[stride]
            ),
            helper.make_node("Relu", [f"conv{n}"], [f"relu{n}"]),
        ]
        x, size = f"relu{n}", HIDDEN
    nodes.append(helper.make_node("Transpose", [x], ["steps"], perm=[2, 0, 1]))
    recurrent, y = _recurrent_stack("steps", HIDDEN, 3, weights)
    nodes += [*recurrent, *_scores(y, weights)]
    return sequence_model(nodes, {"x": (FLOAT, (1, FEATURES, "time"))}, ["y"], weights)
