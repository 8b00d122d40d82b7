"""Reductions of so many terms that no block divides them."""

from __future__ import annotations

import onnx

from tests.support.compilation.models import F, model
from tests.support.gpu.models import conv, drawn, node


def product(terms: int, *batch: int, fixed: bool = True) -> onnx.ModelProto:
    w = drawn(terms, 40, scale=terms**-0.5)
    given = {"x": (F, [*batch, 33, terms])}
    if fixed:
        return model([node("MatMul", "x", "w", "y")], given, ["y"], {"w": w})
    given["w"] = (F, [*batch, terms, 40])
    return model([node("MatMul", "x", "w", "y")], given, ["y"])


def summed(op: str, *shape: int, axis: int = -1, fn: str = "Softplus") -> onnx.ModelProto:
    """Of numbers below 0, of which nothing is the largest."""
    nodes = [node(fn, "x", "a"), node("Neg", "a", "b"), node(op, "b", "y", axes=[axis])]
    return model(nodes, {"x": (F, [*shape])}, ["y"], {})


def normal(*shape: int) -> onnx.ModelProto:
    scale = drawn(shape[-1])
    nodes = [node("LayerNormalization", "x", "s", "y", axis=-1)]
    return model(nodes, {"x": (F, [*shape])}, ["y"], {"s": scale})


DOTS = {
    "a matrix": lambda: product(211),
    "a long matrix": lambda: product(1031),
    "of both given": lambda: product(577, fixed=False),
    "matrices": lambda: product(139, 2, fixed=False),
    "channels": lambda: conv(211, 24, 5, 3, pads=[1] * 4),
    "strided channels": lambda: conv(139, 16, 7, 3, strides=[2, 2]),
}


OTHERS = {
    "a sum": lambda: summed("ReduceL1", 3, 2063),
    "the largest": lambda: summed("ReduceMax", 3, 2063),
    "the least": lambda: summed("ReduceMin", 1, 577, 40, axis=1),
    "a product of numbers": lambda: summed("ReduceProd", 2, 1031, fn="Abs"),
    "squares": lambda: summed("ReduceSumSquare", 2, 1031),
    "a softmax": lambda: model([node("Softmax", "x", "y")], {"x": (F, [2, 16411])}, ["y"]),
    "a norm": lambda: normal(2, 16411),
}
