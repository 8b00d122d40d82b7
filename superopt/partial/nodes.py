"""Node constructors for mutants."""

from __future__ import annotations

from typing import Any

from superopt.ir import graph as g
from superopt.ops import OPS
from superopt.partial.moves import Move, there
from superopt.partial.program import Shape


def both(x: g.Value, a: Move, b: Move, back: bool = False) -> g.Value:
    """Apply one move after another."""
    return there(there(x, a, back), b, back)


def cut_out(x: g.Value, axis: int, begin: int, count: int) -> g.Value:
    attrs: dict[str, Any] = {"starts": (begin,), "ends": (begin + count,), "axes": (axis,)}
    return g.node(OPS["Slice"], [x], steps=(1,), **attrs)


def padded(v: g.Value, pads: Shape) -> g.Value:
    return g.node(OPS["Pad"], [v], pads=pads)


def behind(v: g.Value, axis: int, count: int) -> g.Value:
    """Pad with zeros at the end of an axis."""
    rank = len(v.type.shape or ())
    return padded(v, tuple(count * (d == rank + axis) for d in range(2 * rank)))


def shaped_as(x: g.Value, shape: Shape) -> g.Value:
    return g.node(OPS["Reshape"], [x], shape=shape)


def joined_along(some: list[g.Value], axis: int) -> g.Value:
    return g.node(OPS["Concat"], some, axis=axis)


def exchanged(x: g.Value) -> g.Value:
    """Transpose a matrix, or a batch of matrices."""
    *batch, a, b = range(len(x.type.shape or ()))
    return g.node(OPS["Transpose"], [x], perm=(*batch, b, a))
