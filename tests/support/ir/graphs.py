"""Small graphs for the tests of the search."""

from __future__ import annotations

import numpy as np

from superopt.ir import graph
from superopt.ops import OPS
from superopt.te.expr.dtype import F32
from superopt.te.expr.tensor import TensorType


def value(name: str, *shape: int) -> graph.Input:
    return graph.Input(name, TensorType(F32, shape))


def weight(seed: int, *shape: int) -> graph.Constant:
    return graph.constant(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def op(name: str, *operands: graph.Value, **attrs: object) -> graph.Node:
    return graph.node(OPS[name], operands, **attrs)  # type: ignore[arg-type]


def layers(count: int, width: int = 8) -> graph.Graph:
    """A chain of equal layers, each two matrix products of one input, added, with Relu."""
    x = value("x", 4, width)
    v: graph.Value = x
    for n in range(count):
        a = op("MatMul", v, weight(2 * n, width, width))
        b = op("MatMul", v, weight(2 * n + 1, width, width))
        v = op("Relu", op("Relu", op("Add", a, b)))
    return graph.Graph((x,), (v,))


def siblings(count: int) -> graph.Graph:
    """Matrix products that share an input."""
    x = value("x", 4, 8)
    outs = tuple(op("MatMul", x, weight(n, 8, 3 + n)) for n in range(count))
    return graph.Graph((x,), outs)


def separable(channels: int) -> graph.Graph:
    """Two branches of depthwise and pointwise convolutions, pooled, added and put side by side."""
    x = value("x", 1, channels, 5, 5)

    def point(v: graph.Value, seed: int, given: int) -> graph.Value:
        return op("Conv", v, weight(seed, channels, given, 1, 1), weight(seed + 1, channels))

    def depth(v: graph.Value, seed: int) -> graph.Value:
        w, b = weight(seed, channels, 1, 3, 3), weight(seed + 1, channels)
        return op("Conv", v, w, b, group=channels, pads=(1, 1, 1, 1))

    a = point(x, 0, channels)
    b = point(depth(op("Relu", a), 2), 4, channels)
    c = op("AveragePool", a, kernel_shape=(3, 3), pads=(1, 1, 1, 1))
    both = op("Concat", op("Add", a, b), c, b, axis=1)
    return graph.Graph((x,), (point(both, 6, 3 * channels),))


def reusing(steps: int) -> graph.Graph:
    """A recurrence: the same two large weights at every step."""
    x = value("x", 1, 256)
    a, b = weight(0, 256, 256), weight(1, 256, 256)
    v: graph.Value = x
    for _ in range(steps):
        v = op("Tanh", op("Add", op("MatMul", v, a), op("MatMul", v, b)))
    return graph.Graph((x,), (v,))


def attention() -> graph.Graph:
    """Two products of one input, the second an output too, so that their order is not that of a
    part of the graph."""
    x, y = value("x", 3, 2, 4), value("y", 3, 2, 4)
    k, v = op("MatMul", x, weight(0, 4, 4)), op("MatMul", x, weight(1, 4, 4))
    scores = op("MatMul", y, op("Transpose", k, perm=(0, 2, 1)))
    scores = op("Mul", scores, graph.constant(np.float32(0.5)))
    return graph.Graph((x, y), (op("MatMul", op("Softmax", scores, axis=2), v), k))


def masked(length: int) -> graph.Graph:
    """A mask that is used at both ends of a chain longer than a piece."""
    x, m = value("x", 4, 8), value("m", 4, 8)
    mask = op("Mul", m, graph.constant(np.float32(-1e4)))
    v: graph.Value = op("Add", x, mask)
    for n in range(length):
        v = op(("Tanh", "Sin")[n % 2], v)
    return graph.Graph(
        (x, m), (op("Add", op("Add", op("Add", v, weight(0, 8)), mask), weight(1, 8)),)
    )
