"""The default schedule: loops in memory order of the result, vectors along its last dimension,
reductions one term after the other.

Indices that are quotients or remainders of the last axis (Tile, Resize) repeat with a period. Tiles
of a multiple of it have indices that depend on the lane alone and are known at compile time:
contiguous lanes become a vector load, others a shuffle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd, lcm, prod

from superopt.kernels.loops.apply import apply_schedule
from superopt.kernels.loops.layout import Layout, Part, ScatteredLayout, effective_layout
from superopt.kernels.loops.loop_transforms import Scheduled
from superopt.kernels.loops.schedule import (
    Parallel,
    Primitive,
    Reorder,
    Schedule,
    Split,
    Unroll,
    Vectorize,
)
from superopt.te.analysis.affine import affine
from superopt.te.analysis.walk import index_axes, loads, reductions, subexpressions
from superopt.te.expr.node import Apply, Axis, Const, Load
from superopt.te.expr.symbolic_int import hint
from superopt.te.expr.tensor import Tensor

TILE_ELEMENTS = 64  # elements of a tile
TILE_ELEMENT_OPTIONS = (TILE_ELEMENTS // 4, TILE_ELEMENTS // 2, TILE_ELEMENTS, 2 * TILE_ELEMENTS)
MAX_ROW_TILE_ELEMENTS = (
    512  # elements of a tile that is a whole row, if parts of it would be unaligned
)
PARALLEL_LOOPS, MIN_PARALLEL_STEPS = 2, 16  # outer loops that threads share: more for fewer steps
MIN_TRANSPOSE_ROWS = 4  # rows of a tile that is transposed
CHUNK_ELEMENTS = 4096  # elements, or terms of sums, of a chunk, which is a call


def default_schedule(s: Scheduled, layout: Layout, tile_elements: int = TILE_ELEMENTS) -> Schedule:
    """Return the default schedule of `s`, whose loops are not split yet."""
    steps: list[Primitive] = []
    names = [x.axis.name.removeprefix(s.prefix) for x in s.loops if not x.reduced]
    sizes = [hint(x.extent) for x in s.loops if not x.reduced]
    summed = [x.axis.name.removeprefix(s.prefix) for x in s.loops if x.reduced]
    if not names:
        return ()
    order: list[str] = []
    last, extent = "", 0
    own = {x.axis.name.removeprefix(s.prefix): x.axis for x in s.loops}
    for p in _vector_axis_last(layout.parts, sizes):
        last, extent = names[p.axis], sizes[p.axis]
        if p.block > 1 and not p.is_inner:
            steps.append(Split(last, p.block))
        if p.block > 1:
            last, extent = (f"{last}.i", min(p.block, extent)) if p.is_inner else (f"{last}.o", 0)
        order.append(last)
    period = _index_period(s.tensor, own[last]) if extent > tile_elements and last in own else 1
    whole = (
        tile_elements if period == 1 or summed else MAX_ROW_TILE_ELEMENTS
    )  # reductions are in registers
    block = max(period, tile_elements // period * period)
    if (
        period > 1
        and extent % period == 0
        and block < extent
        and (block <= tile_elements or extent > whole)
    ):
        steps.append(Split(last, block))
        order[-1:] = [f"{last}.o", f"{last}.i"]
        last, extent = f"{last}.i", block
    if extent > whole:
        steps.append(Split(last, tile_elements))
        order[-1:] = [f"{last}.o", f"{last}.i"]
    lanes = order.pop()
    if s.prefix:
        return (*steps, Reorder((*order, *summed, lanes)), Vectorize(lanes))
    reorder = Reorder((*order, *summed, lanes))
    loops = apply_schedule(s, (*steps, reorder)).loops
    extents = [hint(x.extent) for x in loops]
    outer_sizes, within = extents[: len(order)], prod(extents[len(order) :])
    split, outer = _split_parallel_loops(order, outer_sizes, within)
    count, is_large = PARALLEL_LOOPS, prod(extents) > CHUNK_ELEMENTS
    while is_large and count < len(outer) and prod(outer_sizes[:count]) < MIN_PARALLEL_STEPS:
        count += 1
    return (*steps, reorder, *split, Vectorize(lanes), *map(Parallel, outer[:count]))


def _vector_axis_last(parts: Sequence[Part], sizes: Sequence[int]) -> list[Part]:
    """Return the dimensions in memory order, but with the last one of more than one element
    innermost."""
    out = list(parts)
    many = [n for n, p in enumerate(out) if p.block > 1 or sizes[p.axis] != 1]
    if many and many[-1] != len(out) - 1:
        out.append(out.pop(many[-1]))
    return out


def _index_period(t: Tensor, a: Axis) -> int:
    """Return the period of quotients and remainders in indices along an axis, in elements."""
    out = 1
    for e in subexpressions(t.body) if t.body is not None else ():
        if isinstance(e, Apply) and e.fn in ("floordiv", "mod"):
            x, by = e.args
            form = affine(x)
            if form is not None and isinstance(by, Const) and (c := form.coefficient(a)):
                out = lcm(out, int(by.value) // gcd(c, int(by.value)))
    return out


def _split_parallel_loops(
    order: Sequence[str], sizes: Sequence[int], inner_elements: int
) -> tuple[list[Primitive], list[str]]:
    """Return the loops that threads share, with the last one split so that a chunk is not too
    small. inner_elements: work inside these loops."""
    for n in reversed(range(len(order))):
        part = CHUNK_ELEMENTS // max(inner_elements, 1)
        if part < sizes[n]:
            if part < 2:
                return [], list(order[: n + 1])
            return [Split(order[n], part)], [*order[:n], f"{order[n]}.o"]
        inner_elements *= sizes[n]
    return [], list(order)


def transpose_schedule(
    t: Tensor, layouts: Mapping[Tensor, Layout | ScatteredLayout], lanes: int
) -> Schedule | None:
    """Return a schedule with tiles of `lanes` by `lanes`, for a transposing read: both the load and
    the store then use whole vectors. None if no operand is transposed."""
    out = effective_layout(layouts.get(t), t.rank)
    if t.body is None or not out.parts or reductions(t.body):
        return None
    last = out.parts[-1]
    n = t.axes[last.axis]
    found = next(filter(None, (_contiguous_axis(t, x, n, layouts) for x in loads(t.body))), None)
    if found is None or n.size < 2 or found[0].size < MIN_TRANSPOSE_ROWS:
        return None
    other, block = found
    high = min(lanes, 1 << (other.size.bit_length() - 1))
    tile = f"{other.name}.i"
    steps: list[Primitive] = [Split(other.name, high)]
    whole: list[str] = []
    if high < block and block % high == 0 and other.size % block == 0:
        # the parts of a block follow each other, so that whole cache lines are read
        steps, whole, tile = (
            [Split(other.name, block), Split(tile, high)],
            [f"{tile}.o"],
            f"{tile}.i",
        )
    order: list[str] = []
    for p in out.parts:
        a = t.axes[p.axis]
        name = a.name if a != other else f"{a.name}.o"
        if p.block > 1 and a == other:
            return None
        if p.block > 1 and not p.is_inner:
            steps.append(Split(a.name, p.block))
        order.append(f"{name}.{'i' if p.is_inner else 'o'}" if p.block > 1 else name)
    inner = order.pop()
    if n.size > lanes and last.block == 1:
        steps.append(Split(inner, lanes))
        order.append(f"{inner}.o")
        inner = f"{inner}.i"
    shared = [Parallel(x) for x in order[:3]]
    return (*steps, Reorder((*order, *whole, tile, inner)), Unroll(tile), Vectorize(inner), *shared)


def _contiguous_axis(
    t: Tensor, x: Load, n: Axis, layouts: Mapping[Tensor, Layout | ScatteredLayout]
) -> tuple[Axis, int] | None:
    """Return the axis of the result along which the operand is contiguous, if it is another one
    than `n`, and the length of contiguous runs (1: the whole axis)."""
    layout = layouts.get(x.tensor)
    if not x.index or isinstance(layout, ScatteredLayout):
        return None
    part = effective_layout(layout, x.tensor.rank).parts[-1]
    place = x.index[part.axis]
    form = affine(place)
    found = [] if form is None else [a for a, c in form.terms if c == 1 and a in t.axes]
    moves = any(n in index_axes(i) for i in x.index)
    return (found[0], part.block) if len(found) == 1 and found[0] != n and moves else None
