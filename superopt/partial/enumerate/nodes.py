"""Node constructors for mutants."""

from __future__ import annotations

from typing import Any

from superopt.ir import graph
from superopt.ops import OPS
from superopt.partial.enumerate.axis_moves import AxisMove, apply_move
from superopt.partial.enumerate.program import Shape


def apply_moves(x: graph.Value, a: AxisMove, b: AxisMove, back: bool = False) -> graph.Value:
    """Apply one move after another."""
    return apply_move(apply_move(x, a, back), b, back)


def slice_axis(x: graph.Value, axis: int, begin: int, count: int) -> graph.Value:
    attrs: dict[str, Any] = {"starts": (begin,), "ends": (begin + count,), "axes": (axis,)}
    return graph.node(OPS["Slice"], [x], steps=(1,), **attrs)


def pad(v: graph.Value, pads: Shape) -> graph.Value:
    return graph.node(OPS["Pad"], [v], pads=pads)


def pad_end(v: graph.Value, axis: int, count: int) -> graph.Value:
    """Pad with zeros at the end of an axis."""
    rank = len(v.type.shape or ())
    return pad(v, tuple(count * (d == rank + axis) for d in range(2 * rank)))


def reshape(x: graph.Value, shape: Shape) -> graph.Value:
    return graph.node(OPS["Reshape"], [x], shape=shape)


def concat(some: list[graph.Value], axis: int) -> graph.Value:
    return graph.node(OPS["Concat"], some, axis=axis)


def transpose_matrix(x: graph.Value) -> graph.Value:
    """Transpose a matrix, or a batch of matrices."""
    *batch, a, b = range(len(x.type.shape or ()))
    return graph.node(OPS["Transpose"], [x], perm=(*batch, b, a))
