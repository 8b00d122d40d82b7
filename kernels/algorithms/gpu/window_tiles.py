"""Reductions over windows on a GPU, with channels last: tiles of columns and channels, and of
several rows, which share the overlap of their windows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from superopt.kernels.algorithms.algorithm import Algorithm
from superopt.kernels.algorithms.gpu.blocks import (
    best_divisor,
    memory_order_axes,
    result_elements,
)
from superopt.kernels.algorithms.problem import Choice, Problem
from superopt.kernels.loops.loop_transforms import reduction
from superopt.kernels.loops.option import Option
from superopt.kernels.loops.schedule import (
    Parallel,
    Primitive,
    Reorder,
    Schedule,
    Split,
    Unroll,
    Vectorize,
)
from superopt.kernels.triton.dot_limits import MIN_DOT_EXTENT
from superopt.te.analysis.affine import affine
from superopt.te.analysis.walk import loads
from superopt.te.expr.node import Axis, Reduce

# Elements of a tile, channels at most, and warps, for 16 and 32 bits; best first, by 20 depthwise
# convolutions of one and of 16 images.
TILES = {
    16: ((512, 64, 2), (512, 32, 4), (512, 64, 4), (1024, 64, 4)),
    32: ((512, 32, 4), (1024, 64, 4), (512, 64, 2), (512, 64, 4)),
}
# The same for products, with rows stacked in a tile (`window_schedule`), by 11 of these. Many rows
# leave few programs: from so many elements on.
STACKED_TILES = (
    (1024, 64, 7, 4),
    (1024, 64, 4, 4),
    (512, 32, 7, 2),
    (1024, 64, 2, 4),
    (256, 64, 7, 1),
    (512, 32, 1, 4),
    (1024, 64, 1, 4),
)
MIN_STACKED_ELEMENTS = {7: 1 << 20, 2: 1 << 17, 1: 0}
MAX_ROW_RATIO = 1.2  # computed rows over existing ones


def window_axes(p: Problem) -> tuple[Axis, Axis] | None:
    """Return the last two axes of a result of windows (image columns and channels), if the reduced
    elements are strided: with both axes in the tile, addresses need no division. None otherwise."""
    order, found = memory_order_axes(p), reduction(p.tensor)
    if found is None or len(found.axes) < 2 or len(order) < 3:
        return None
    row, column = order[-2:]
    return (row, column) if row.size > 1 and column.size >= MIN_DOT_EXTENT else None


def stacked_axes(p: Problem) -> tuple[Axis, Axis] | None:
    """Return the axis before the rows of `window_axes`, and the reduction axis along which windows
    of neighbours overlap, so that neighbours share loads. None if there are none."""
    order, found = memory_order_axes(p), reduction(p.tensor)
    if found is None:
        return None
    high = order[-3]
    for x in loads(found.body):
        for form in map(affine, x.index):
            over = [a for a in found.axes if form is not None and form.coefficient(a)]
            if form is None or len(over) != 1 or min(a.size for a in (high, *over)) < 2:
                continue
            if 0 < form.coefficient(high) < form.coefficient(over[0]) * over[0].size:
                return high, over[0]
    return None


def window_schedule(p: Problem, rows: int, columns: int, stacked_rows: int = 1) -> Schedule:
    """Return the schedule of tiles of both axes of `window_axes`, reductions term by term, with
    stacked_rows rows in separate registers that share loads."""
    order, found, along = memory_order_axes(p), reduction(p.tensor), stacked_axes(p)
    assert found is not None
    *rest, row, column = (a.name for a in order)
    over = [a.name for a in found.axes]
    outer = [*rest, f"{row}.o", f"{column}.o"]
    steps: list[Primitive] = [
        Reorder((*rest, row, column, *over)),
        Split(row, min(rows, order[-2].size)),
        Split(column, min(columns, order[-1].size)),
    ]
    apart: list[Primitive] = []
    if stacked_rows > 1 and along is not None:
        high, k = (a.name for a in along)
        steps.append(Split(high, min(stacked_rows, along[0].size)))
        outer[outer.index(high)] = f"{high}.o"
        over = [*(a for a in over if a != k), f"{high}.i", k]
        apart = [Unroll(f"{high}.i"), Unroll(k)]
    return (
        *steps, Reorder((*outer, *over, f"{row}.i", f"{column}.i")),
        *map(Parallel, outer), *apart, Unroll(f"{row}.i"), Vectorize(f"{column}.i"),
    )  # fmt: skip


def tile_candidates(p: Problem, reduction_expr: Reduce) -> list[tuple[int, int, int, int]]:
    """Return (elements, channels, stacked rows, warps), best first; see TILES and STACKED_TILES."""
    along = (
        stacked_axes(p)
        if any(x.tensor in p.constants for x in loads(reduction_expr.body))
        else None
    )
    if along is None:
        some = TILES[16 if p.tensor.dtype.bits == 16 else 32]
        return [(elements, wide, 1, warps) for elements, wide, warps in some]
    high = along[0].size
    best = next(d for d, n in MIN_STACKED_ELEMENTS.items() if result_elements(p.tensor) >= n)
    waste = {d: -(-high // d) * d / high for d in (1, 2, 4, 7)}
    return sorted(STACKED_TILES, key=lambda x: (waste[x[2]] > MAX_ROW_RATIO, x[2] != best))


def window_options(p: Problem, axes: tuple[Axis, Axis]) -> Iterator[Option]:
    """Yield options, best first."""
    found = reduction(p.tensor)
    assert found is not None
    for elements, wide, stacked, warps in tile_candidates(p, found):
        columns = best_divisor(axes[1].size, wide, MIN_DOT_EXTENT // 2)
        if columns:
            rows = elements >> (columns - 1).bit_length()
            more = {"stacked_rows": stacked} if stacked > 1 else {}
            yield Option.make("window_tiles", rows=rows, columns=columns, **more, warps=warps)


def schedule_windows(p: Problem, axes: tuple[Axis, Axis], option: Option) -> Choice:
    """Return the choice of an option; constants that are read once are packed."""
    found = reduction(p.tensor)
    assert found is not None
    stacked = dict(option.knobs).get("stacked_rows", 1)
    how = window_schedule(p, option["rows"], option["columns"], stacked)
    read = Counter(x.tensor for x in loads(found.body))
    packed = tuple(c for c, n in read.items() if n == 1 and c.shape and c in p.constants)
    return Choice(option, p.tensor, {p.tensor: how}, packed)


WINDOW_TILES = Algorithm(
    ("window_tiles",), "windows, channels last: pooling, depthwise convolution", window_axes,
    window_options, schedule_windows,
)  # fmt: skip
