"""Reductions that are no products of matrices: windows, depthwise convolutions, rows.

along the result   vectors of neighbours in the result, each with a sum of its own; several at a
                   time, because one must wait for itself
across             vectors of what is summed, added to each other in the end: where that lies
                   next to each other, as the rows of a softmax do
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from superopt.kernels.contraction import strides
from superopt.kernels.layout import Layout, Scatter, lying
from superopt.kernels.schedule import (
    Parallel,
    Primitive,
    Reorder,
    Schedule,
    Split,
    Unroll,
    Vectorize,
)
from superopt.kernels.transform import reduction
from superopt.kernels.walk import axes_of, loads
from superopt.te.expr import Tensor
from superopt.te.node import Axis, Load

ROWS = 8  # sums at a time
LANES = 256  # of a vectorized sum, at most: what is more is a loop
WIDE = 64  # elements of the result at a time, where there is one row


def scheduled(
    t: Tensor,
    layouts: Mapping[Tensor, Layout | Scatter],
    constants: Collection[Tensor],
    lanes: int,
    *,
    parallel: bool = True,
) -> tuple[Schedule, tuple[Tensor, ...]] | None:
    """A schedule, and the constants that are packed for it; None where there is no single sum."""
    found = reduction(t)
    if found is None or not t.axes:
        return None
    read = [x for x in loads(found.body) if x.tensor.shape]
    out = lying(layouts.get(t), t.rank)
    order = list(dict.fromkeys(t.axes[p.axis] for p in reversed(out.parts)))
    order = [a for a in order if _extent(a) > 1] or order[:1]
    last = found.axes[-1]
    if _rows(read, order[0], last, layouts):
        return _across(t, found.axes, lanes, parallel), ()
    packed = tuple(_packed(read, order[0], constants))
    return _along(t, found.axes, order, out, lanes, parallel), packed


def _rows(
    read: list[Load], lane: Axis, last: Axis, layouts: Mapping[Tensor, Layout | Scatter]
) -> bool:
    """Do neighbours of the sum lie next to each other, and those of the result do not?"""
    if _extent(last) < 4:
        return False
    if any(x.tensor in layouts for x in read):
        return False  # pictures: their channels are neighbours
    along = [strides(x, last) for x in read]
    other = [strides(x, lane) for x in read]
    if _extent(lane) < 4:
        return all(s in (0, 1) for s in along)
    return 1 in along and all(s in (0, 1) for s in along) and any(s not in (0, 1) for s in other)


def _packed(read: list[Load], lane: Axis, constants: Collection[Tensor]) -> list[Tensor]:
    """Constants whose neighbours along the lanes do not lie next to each other."""
    counts: dict[Tensor, int] = {}
    for x in read:
        counts[x.tensor] = counts.get(x.tensor, 0) + 1
    return [
        x.tensor
        for x in read
        if x.tensor in constants
        and counts[x.tensor] == 1
        and any(lane in axes_of(i) for i in x.index)
        and strides(x, lane) != 1
    ]


def _across(t: Tensor, over: tuple[Axis, ...], lanes: int, parallel: bool) -> Schedule:
    last = over[-1]
    steps: list[Primitive] = []
    name = last.name
    extent = _extent(last)
    if extent > LANES:
        factor = max((n for n in range(lanes, LANES + 1, lanes) if extent % n == 0), default=0)
        if factor:
            steps.append(Split(name, factor))
            name = f"{name}.i"
    steps.append(Vectorize(name)) if extent <= LANES or name != last.name else None
    outer = [a.name for a in t.axes]
    return (*steps, *(Parallel(a) for a in outer)) if parallel else tuple(steps)


def _along(
    t: Tensor,
    over: tuple[Axis, ...],
    order: list[Axis],
    out: Layout,
    lanes: int,
    parallel: bool,
) -> Schedule:
    n = order[0]
    m = order[1] if len(order) > 1 else None
    steps: list[Primitive] = []
    block = next((p.block for p in out.parts if p.within and t.axes[p.axis] == n), 0)
    wide = block or (WIDE if m is None or _extent(m) < 2 else lanes * 2)
    steps.append(Split(n.name, wide))
    tile = [f"{n.name}.i"]
    first = [a.name for a in t.axes if a not in (n, m)]
    place = len(first) if not block else min(1, len(first))
    first.insert(place, f"{n.name}.o")
    if m is not None:
        rows = min(range(1, ROWS + 1), key=lambda r: (-(-_extent(m) // r) * (r + 1), -r))
        steps.append(Split(m.name, rows))
        tile.insert(0, f"{m.name}.i")
        first.append(f"{m.name}.o")
    steps.append(Reorder((*first, *(a.name for a in over), *tile)))
    steps += [Unroll(x) for x in tile[:-1]]
    steps.append(Vectorize(tile[-1]))
    if parallel:
        steps += [Parallel(x) for x in first[:3]]
    return tuple(steps)


def _extent(a: Axis) -> int:
    assert isinstance(a.extent, int)
    return a.extent
