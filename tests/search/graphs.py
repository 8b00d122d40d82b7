"""Small graphs for the tests of the search."""

from __future__ import annotations

import numpy as np

from superopt.ir import graph as g
from superopt.ops import OPS
from superopt.te.dtype import F32
from superopt.te.expr import TensorType


def value(name: str, *shape: int) -> g.Input:
    return g.Input(name, TensorType(F32, shape))


def weight(seed: int, *shape: int) -> g.Constant:
    return g.constant(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def op(name: str, *operands: g.Value, **attrs: object) -> g.Node:
    return g.node(OPS[name], operands, **attrs)  # type: ignore[arg-type]


def layers(count: int, width: int = 8) -> g.Graph:
    """A chain of equal layers, each two matrix products of one input, added, with Relu."""
    x = value("x", 4, width)
    v: g.Value = x
    for n in range(count):
        a = op("MatMul", v, weight(2 * n, width, width))
        b = op("MatMul", v, weight(2 * n + 1, width, width))
        v = op("Relu", op("Relu", op("Add", a, b)))
    return g.Graph((x,), (v,))


def siblings(count: int) -> g.Graph:
    """Matrix products that share an input."""
    x = value("x", 4, 8)
    outs = tuple(op("MatMul", x, weight(n, 8, 3 + n)) for n in range(count))
    return g.Graph((x,), outs)
