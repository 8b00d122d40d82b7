"""Row kernels: everything computed of a row, while the row is in the cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

from superopt.kernels.contraction import strides
from superopt.kernels.schedule import (
    ComputeAt,
    Fuse,
    Inline,
    Parallel,
    Primitive,
    Schedule,
    Split,
    Vectorize,
)
from superopt.kernels.transform import reduction
from superopt.te.expr import Tensor
from superopt.te.node import Axis, Load, Reduce
from superopt.te.walk import loads, stages

CHUNKS = 8
ROWS = 8  # at a time
ROOM = 1 << 14  # of rows at a time
STAYS = 1 << 21  # of a result that stays in L2
BURST = 2048  # at a time for larger results: memory absorbs so many while more is computed
SUMMED = 4096  # of a sum at a time


def scheduled(t: Tensor, lead: int, lanes: int) -> Mapping[Tensor, Schedule]:
    """Return the schedules of a tensor and its stages, which are computed in the loop over rows.
    lanes: elements at a time."""
    row, some = t.axes[lead - 1].name, block(t, lead)
    split = f"{row}.o" if some > 1 else row
    out = within(t, lead, lanes, split)
    chunks = [split if name == row else name for name in shared(t.axes[:lead])]
    first = [Split(row, some)] if some > 1 else []
    out[t] = (*first, *out[t], *map(Parallel, chunks))
    return out


def within(t: Tensor, lead: int, lanes: int, at: str = "") -> dict[Tensor, Schedule]:
    """Return the schedules of a row kernel's stages as part of another kernel. loop: of `t`, at
    which stages are computed."""
    row = at or t.axes[lead - 1].name
    out: dict[Tensor, Schedule] = {}
    order = stages([t])
    for s in order:
        found = reduction(s)
        if s is not t and found is None and s.rank == t.rank and once(s, order):
            out[s] = (Inline(),)
            continue
        steps = [] if s is t else [ComputeAt(t.name, row)]
        if found is not None:
            out[s] = (*steps, *summed(found))
        else:
            out[s] = (*steps, *_vectors(s.axes[-1], lanes if s.rank == t.rank else 1))
    return out


def block(t: Tensor, lead: int) -> int:
    """Return the rows at a time, within L1: their latencies overlap. With 4 KiB or more, layer
    norms of 16 MiB took 1.4 to 1.8 times as long."""
    order = stages([t])
    kept = 1 + sum(s.rank == t.rank and reduction(s) is None for s in order if s is not t)
    row = prod(a.size for a in t.axes[lead:]) * max(t.dtype.bits // 8, 1)
    rows = prod(a.size for a in t.axes[:lead])
    room = ROOM // (kept * row) if rows * row <= STAYS else BURST // row
    size = t.axes[lead - 1].size
    most = max(1, min(ROWS, room, rows // CHUNKS, size))
    # a divisor recomputes no rows, and allows in-place stages (in_place_stages.py)
    return next((n for n in range(most, most // 2, -1) if size % n == 0), most)


def once(s: Tensor, order: Sequence[Tensor]) -> bool:
    """True if the stage is read in one place, and need not be stored."""
    read = [x for o in order if o.body is not None for x in loads(o.body) if x.tensor is s]
    return len(set(read)) == 1


def shared(axes: Sequence[Axis]) -> Iterator[str]:
    """Yield the outer loops that threads share: enough chunks for all threads, and no more, since
    each is a call."""
    chunks = 1
    for a in axes:
        if chunks >= CHUNKS:
            break
        yield a.name
        chunks *= a.size


def _vectors(last: Axis, lanes: int) -> list[Primitive]:
    if last.size <= lanes:
        return [Vectorize(last.name)]
    return [Split(last.name, lanes), Vectorize(f"{last.name}.i")]


def summed(found: Reduce, most: int = SUMMED) -> list[Primitive]:
    """Return primitives that reduce across lanes: all terms, or a divisor of a long sum. Contiguous
    axes are fused."""
    *outer, last = found.axes
    steps: list[Primitive] = []
    name, extent = last.name, last.size
    while outer and all(_together(x, outer[-1], last, extent) for x in loads(found.body)):
        a = outer.pop()
        steps.append(Fuse(a.name, name))
        name, extent = f"{a.name}_{name}", extent * a.size
    if extent <= most:
        return [*steps, Vectorize(name)]
    factor = next((n for n in range(most, most // 16, -1) if extent % n == 0), 0)
    if factor:
        steps += [Split(name, factor), Vectorize(f"{name}.i")]
    return steps


def _together(x: Load, outer: Axis, last: Axis, extent: int) -> bool:
    """True if the outer axis continues where `extent` elements along the last one end."""
    far, near = strides(x, outer), strides(x, last)
    return far is not None and near is not None and far == near * extent
