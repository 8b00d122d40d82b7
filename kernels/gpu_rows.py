"""Row kernels (plan/rows.py) on a GPU: a row is a program; several short rows share one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

from superopt.kernels.gpu_blocks import MULTIPROCESSORS, fused, step, taken
from superopt.kernels.layout import lying
from superopt.kernels.option import Option
from superopt.kernels.problem import Problem
from superopt.kernels.rows import once
from superopt.kernels.schedule import (
    ComputeAt,
    Inline,
    Parallel,
    Primitive,
    Reorder,
    Schedule,
    Split,
    Unroll,
    Vectorize,
)
from superopt.kernels.transform import reduction
from superopt.te.dtype import INDEX
from superopt.te.expr import Tensor
from superopt.te.node import Apply, Axis
from superopt.te.walk import axes_of, loads, parts, reductions, stages

PER_WARP = 512  # of a row
LARGEST = 1 << 15  # of a row that is one block
STEP = 1 << 14  # elements at a time: some rows are faster read so, three times
LITTLE = 24  # of an element that is recomputed rather than stored
# Elements and warps of a program of several rows. Unaligned rows load each element by itself, by
# neighbouring threads; elements of more than one warp would be reduced through shared memory,
# unless rows are shorter than a warp.
ROWS, WARPS = 2048, 2
RAGGED, LANES, MOST_WARPS = 1024, 32, 4
# Rows that are adjacent in memory: at least as many as 16-bit elements fill a sector; the fastest
# number in 10 softmaxes and layer norms, by elements of a program, larger for short rows; elements
# of a thread then (4 million pixels of 21 classes in fp16: 120 us by these, 427 by 32 rows and 8
# elements); and warps of a multiprocessor, if there are fewer programs.
BESIDE, NEIGHBOURS, AREA, MOST = 16, 64, 4096, 512
EACH, BUSY = 128, 4


def short_and_long(p: Problem) -> Iterator[Option]:
    """Yield the options of a row kernel."""
    n = max(prod(a.size for a in x) for x in _taken_together(p))
    best = max(1, min(8, 1 << max(n // PER_WARP, 1).bit_length() - 1))
    best = 32 if n > LARGEST else 16 if n > LARGEST // 4 else best
    yield from _high(p, n)
    more = (16, 32) if best > 8 else (1, 2)
    yield from (Option.of("rows", warps=w) for w in dict.fromkeys((best, *more, 4, 8)))
    if n > STEP:
        yield from (Option.of("rows", step=STEP, warps=w) for w in (16, 8))


def _taken_together(p: Problem) -> Iterator[Sequence[Axis]]:
    """Yield the axes of a row, and those of each reduction over it."""
    yield p.tensor.axes[p.lead :]
    yield from (r.axes for s in stages([p.tensor]) for r in reductions(s.body))


def _high(p: Problem, n: int) -> Iterator[Option]:
    """Yield options with several rows of n elements per program, for many short rows; those that
    were best in 19 softmaxes and layer norms, or close, come first."""
    last, wide = p.tensor.axes[p.lead - 1].size, 1 << max(n - 1, 0).bit_length()
    rows = prod(a.size for a in p.tensor.axes[: p.lead])
    if _across(p):
        yield from _beside(rows, last, wide, EACH if _read(p) == 1 else EACH // 2)
        return
    ragged = n * p.tensor.dtype.bits % 128 > 0
    area, few = (RAGGED, MOST_WARPS if wide <= LANES else 1) if ragged else (ROWS, WARPS)
    most = min(area // wide, rows // (2 * MULTIPROCESSORS))
    high = 1 << max(min(most, last), 1).bit_length() - 1
    for h in (high, high // 2, 2 * high) if high > 1 else ():
        if 1 < h <= last and h * wide <= 2 * ROWS:
            warps = max(1, min(few, h * wide // 256))
            some = (w for w in (warps, 2 * warps, 4 * warps, warps // 2) if 1 <= w <= 8)
            yield from (Option.of("rows", high=h, warps=w) for w in some)


def _across(p: Problem) -> bool:
    """True if rows are adjacent in memory, in the result and in all reduced operands."""

    def innermost(t: Tensor) -> int:
        return lying(p.layouts.get(t), t.rank).parts[-1].axis

    terms = (r for s in stages([p.tensor]) for r in reductions(s.body))
    along = (
        axes_of(x.index[innermost(x.tensor)]) & set(r.axes)
        for r in terms
        for x in loads(r.body)
        if x.tensor.body is None and x.index
    )
    return innermost(p.tensor) < p.lead and not any(along)


def _read(p: Problem) -> int:
    """Return how many tensors of the result's size are read."""
    read = {e.tensor for s in stages([p.tensor]) if s.body is not None for e in loads(s.body)}
    size = prod(p.tensor.shape)
    return sum(t.body is None and prod(t.shape) == size for t in read)


def _beside(rows: int, last: int, wide: int, each: int = EACH) -> Iterator[Option]:
    """Yield options for strided rows, `last` of which are adjacent. elements_per_thread: at
    most."""
    most = min(max(NEIGHBOURS, AREA // wide), MOST, rows // (2 * MULTIPROCESSORS))
    most = min(most, 8 * 32 * each // wide)
    high = 1 << max(min(max(most, BESIDE), last), 1).bit_length() - 1
    for h in (high, high // 2, 2 * high):
        if not 1 < h <= last:
            continue
        area, programs = h * wide, max(1, -(-rows // h))
        busy = min(-(-BUSY * MULTIPROCESSORS // programs), area // 256)
        warps = 1 << max(1, min(8, max(area // (32 * each), busy))).bit_length() - 1
        some = (w for w in (warps, 2 * warps, warps // 2, 4 * warps) if 1 <= w <= 8)
        yield from (
            Option.of("rows", high=h, warps=w) for w in some if area // (32 * w) <= 2 * each
        )


def in_memory(t: Tensor, lead: int, most: int = LARGEST) -> bool:
    """True if intermediate rows are kept in memory instead of registers. (Written into the result,
    a softmax of 8192 rows of 1024 fp32 took 27.4 us; in registers 23.8.)"""
    return prod(a.size for a in t.axes[lead:]) > most


def by_rows(t: Tensor, lead: int, high: int = 1, most: int = LARGEST) -> Mapping[Tensor, Schedule]:
    """Return schedules with `rows_per_program` rows each; their stages are computed whole, up to
    max_elements at a time."""
    row = t.axes[lead - 1].name
    out: dict[Tensor, Schedule] = {}
    order, long, work = stages([t]), in_memory(t, lead, most), dict[Tensor, int]()
    for s in order:
        found = reduction(s)
        if s is not t and found is None and s.rank == t.rank:
            assert s.body is not None
            some = sum(isinstance(e, Apply) and e.dtype != INDEX for e in parts(s.body))
            work[s] = some + sum(work.get(x.tensor, 0) for x in set(loads(s.body)))
            if once(s, order) or (long and work[s] <= LITTLE):
                out[s] = (Inline(),)
                continue
            work[s] = 0
        steps: list[Primitive] = []
        before, own = [a.name for a in s.axes[: lead - 1]], s.axes[lead - 1].name
        axes = list(found.axes if found is not None else s.axes[lead:])
        if s is not t:
            steps.append(ComputeAt(t.name, f"{row}.o" if high > 1 else row))
        elif high > 1:
            steps.append(Split(row, high))
            before, own = [*before, f"{row}.o"], f"{row}.i"
        if high > 1 and found is not None:
            kept = [a.name for a in s.axes[lead:]]
            steps.append(Reorder((*before, *kept, *(a.name for a in axes), own)))
        if axes:
            name = fused(steps, axes)
            n = prod(a.size for a in axes)
            if n > most:
                size = step(n, most)
                steps.append(Split(name, size) if found is None else taken(name, n, size))
                name = f"{name}.i"
            if high > 1:
                outer, inner = (own, name) if found is None else (name, own)
                steps += [Unroll(outer), Vectorize(inner)]
            else:
                steps.append(Vectorize(name))
        elif high > 1:
            steps.append(Vectorize(own))
        out[s] = tuple(steps)
    apart = [a.name for a in t.axes[: lead - 1]]
    apart.append(f"{row}.o" if high > 1 else row)
    out[t] = (*out[t], *map(Parallel, apart))
    return out
