"""Transposes on a GPU: tiles whose reads and writes are both contiguous."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from superopt.kernels.algorithms.algorithm import Algorithm
from superopt.kernels.algorithms.gpu.blocks import fuse_axes, memory_order_axes, memory_stride
from superopt.kernels.algorithms.problem import Choice, Problem
from superopt.kernels.loops.loop_transforms import reduction
from superopt.kernels.loops.option import Option
from superopt.kernels.loops.schedule import (
    Parallel,
    Primitive,
    Reorder,
    Schedule,
    Tile,
    Unroll,
    Vectorize,
)
from superopt.kernels.triton.dot_limits import MIN_DOT_EXTENT
from superopt.te.analysis.walk import loads
from superopt.te.expr.node import Axis

TRANSPOSE_TILE_SIDES = (64, 32)  # of the read and of the written contiguous axis


def transposed_axes(p: Problem) -> list[Axis] | None:
    """Return consecutive axes along which an operand is contiguous but the result is not; None if
    there are none."""
    order = memory_order_axes(p)
    if p.tensor.body is None or not order or reduction(p.tensor) is not None:
        return None
    for x in loads(p.tensor.body):
        steps = {a: memory_stride(x, a, p.layouts) for a in order}
        found = [
            n for n, a in enumerate(order[:-1]) if steps[a] == 1 and a.size >= MIN_DOT_EXTENT // 2
        ]
        if not found or steps[order[-1]] in (None, 0, 1):
            continue
        first = last = found[-1]
        size = order[last].size
        while first and steps[order[first - 1]] == size:
            first -= 1
            size *= order[first].size
        if size >= MIN_DOT_EXTENT:
            return order[first : last + 1]
    return None


def transpose_schedule(p: Problem, axes: list[Axis], o: Option) -> Schedule:
    """Return the schedule of tiles in which both reads and writes are contiguous."""
    order = memory_order_axes(p)
    inner = order[-1].name
    rest = [a.name for a in order[:-1] if a not in axes]
    steps: list[Primitive] = [Reorder((*rest, *(a.name for a in axes), inner))]
    name = fuse_axes(steps, axes)
    size = prod(a.size for a in axes)
    steps.append(Tile(name, inner, min(o["rows"], size), min(o["columns"], order[-1].size)))
    outer = [*rest, f"{name}.o", f"{inner}.o"]
    return (*steps, *map(Parallel, outer), Unroll(f"{name}.i"), Vectorize(f"{inner}.i"))


def transpose_options(p: Problem, axes: list[Axis]) -> Iterator[Option]:
    """Yield options, best first."""
    wide = max(TRANSPOSE_TILE_SIDES)
    for side in TRANSPOSE_TILE_SIDES:
        yield Option.make("transpose", rows=side, columns=wide, warps=4)


def schedule_transpose(p: Problem, axes: list[Axis], option: Option) -> Choice:
    """Return the choice of an option."""
    return Choice(option, p.tensor, {p.tensor: transpose_schedule(p, axes, option)})


TRANSPOSE = Algorithm(
    ("transpose",), "Transpose: tiles whose reads and writes are contiguous", transposed_axes,
    transpose_options, schedule_transpose,
)  # fmt: skip
