"""Row kernels (plan/rewrites/reductions/row_fusion.py) on a GPU: a row is a program;
several short rows share one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

from superopt.kernels.algorithms.algorithm import Algorithm
from superopt.kernels.algorithms.cpu.row_kernels import is_read_once, recognise_rows
from superopt.kernels.algorithms.gpu.blocks import MULTIPROCESSORS, best_step, fuse_axes, split_sum
from superopt.kernels.algorithms.problem import Choice, Problem
from superopt.kernels.loops.layout import effective_layout
from superopt.kernels.loops.loop_transforms import reduction
from superopt.kernels.loops.option import Option
from superopt.kernels.loops.schedule import (
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
from superopt.te.analysis.walk import (
    computed_tensors,
    index_axes,
    loads,
    reductions,
    subexpressions,
)
from superopt.te.expr.dtype import INDEX
from superopt.te.expr.node import Apply, Axis
from superopt.te.expr.tensor import Tensor

# Of a row. 50,176 norms of 96 elements: 62 -> 11 us; rows of 49 elements, which are no multiple of
# 16 bytes, took 84 us with a second warp, and take 51.
ELEMENTS_PER_WARP = 512
MAX_BLOCK_ELEMENTS = 1 << 15  # of a row that is one block
STEP_ELEMENTS = 1 << 14  # elements at a time: some rows are faster read so, three times
MAX_RECOMPUTED_OPERATIONS = 24  # of an element that is recomputed rather than stored
# Elements and warps of a program of several rows. Unaligned rows load each element by itself, by
# neighbouring threads; elements of more than one warp would be reduced through shared memory,
# unless rows are shorter than a warp.
MULTI_ROW_ELEMENTS, MULTI_ROW_WARPS = 2048, 2
UNALIGNED_ROW_ELEMENTS, WARP_LANES, MAX_UNALIGNED_WARPS = 1024, 32, 4
# Rows that are adjacent in memory: at least as many as 16-bit elements fill a sector; the fastest
# number in 10 softmaxes and layer norms, by elements of a program, larger for short rows; elements
# of a thread then (4 million pixels of 21 classes in fp16: 120 us by these, 427 by 32 rows and 8
# elements); and warps of a multiprocessor, if there are fewer programs.
MIN_ADJACENT_ROWS, ADJACENT_ROWS, PROGRAM_ELEMENTS, MAX_ADJACENT_ROWS = 16, 64, 4096, 512
ELEMENTS_PER_THREAD, MIN_WARPS_PER_SM = 128, 4


def row_options(p: Problem, row_axes: int) -> Iterator[Option]:
    """Yield the options of a row kernel, best first."""
    n = max(prod(a.size for a in x) for x in _row_extents(p))
    best = max(1, min(8, 1 << max(n // ELEMENTS_PER_WARP, 1).bit_length() - 1))
    best = 32 if n > MAX_BLOCK_ELEMENTS else 16 if n > MAX_BLOCK_ELEMENTS // 4 else best
    yield from _multi_row_options(p, n)
    more = (16, 32) if best > 8 else (1, 2)
    yield from (Option.make("row_wise", warps=w) for w in dict.fromkeys((best, *more, 4, 8)))
    if n > STEP_ELEMENTS:
        yield from (Option.make("row_wise", step=STEP_ELEMENTS, warps=w) for w in (16, 8))


def _row_extents(p: Problem) -> Iterator[Sequence[Axis]]:
    """Yield the axes of a row, and those of each reduction over it."""
    yield p.tensor.axes[p.row_axes :]
    yield from (r.axes for s in computed_tensors([p.tensor]) for r in reductions(s.body))


def _multi_row_options(p: Problem, n: int) -> Iterator[Option]:
    """Yield options with several rows of n elements per program, for many short rows; those that
    were best in 19 softmaxes and layer norms, or close, come first."""
    last, wide = p.tensor.axes[p.row_axes - 1].size, 1 << max(n - 1, 0).bit_length()
    rows = prod(a.size for a in p.tensor.axes[: p.row_axes])
    if _has_adjacent_rows(p):
        yield from _adjacent_row_options(
            rows,
            last,
            wide,
            ELEMENTS_PER_THREAD if _result_sized_reads(p) == 1 else ELEMENTS_PER_THREAD // 2,
        )
        return
    ragged = n * p.tensor.dtype.bits % 128 > 0
    area, few = (
        (UNALIGNED_ROW_ELEMENTS, MAX_UNALIGNED_WARPS if wide <= WARP_LANES else 1)
        if ragged
        else (MULTI_ROW_ELEMENTS, MULTI_ROW_WARPS)
    )
    most = min(area // wide, rows // (2 * MULTIPROCESSORS))
    high = 1 << max(min(most, last), 1).bit_length() - 1
    for h in (high, high // 2, 2 * high) if high > 1 else ():
        if 1 < h <= last and h * wide <= 2 * MULTI_ROW_ELEMENTS:
            warps = max(1, min(few, h * wide // 256))
            some = (w for w in (warps, 2 * warps, 4 * warps, warps // 2) if 1 <= w <= 8)
            yield from (Option.make("row_wise", rows=h, warps=w) for w in some)


def _has_adjacent_rows(p: Problem) -> bool:
    """True if rows are adjacent in memory, in the result and in all reduced operands."""

    def innermost(t: Tensor) -> int:
        return effective_layout(p.layouts.get(t), t.rank).parts[-1].axis

    terms = (r for s in computed_tensors([p.tensor]) for r in reductions(s.body))
    along = (
        index_axes(x.index[innermost(x.tensor)]) & set(r.axes)
        for r in terms
        for x in loads(r.body)
        if x.tensor.body is None and x.index
    )
    return innermost(p.tensor) < p.row_axes and not any(along)


def _result_sized_reads(p: Problem) -> int:
    """Return how many tensors of the result's size are read."""
    read = {
        e.tensor for s in computed_tensors([p.tensor]) if s.body is not None for e in loads(s.body)
    }
    size = prod(p.tensor.shape)
    return sum(t.body is None and prod(t.shape) == size for t in read)


def _adjacent_row_options(
    rows: int, last: int, wide: int, elements_per_thread: int = ELEMENTS_PER_THREAD
) -> Iterator[Option]:
    """Yield options for strided rows, `last` of which are adjacent. elements_per_thread: at
    most."""
    most = min(
        max(ADJACENT_ROWS, PROGRAM_ELEMENTS // wide),
        MAX_ADJACENT_ROWS,
        rows // (2 * MULTIPROCESSORS),
    )
    most = min(most, 8 * 32 * elements_per_thread // wide)
    high = 1 << max(min(max(most, MIN_ADJACENT_ROWS), last), 1).bit_length() - 1
    for h in (high, high // 2, 2 * high):
        if not 1 < h <= last:
            continue
        area, programs = h * wide, max(1, -(-rows // h))
        busy = min(-(-MIN_WARPS_PER_SM * MULTIPROCESSORS // programs), area // 256)
        warps = 1 << max(1, min(8, max(area // (32 * elements_per_thread), busy))).bit_length() - 1
        some = (w for w in (warps, 2 * warps, warps // 2, 4 * warps) if 1 <= w <= 8)
        yield from (
            Option.make("row_wise", rows=h, warps=w)
            for w in some
            if area // (32 * w) <= 2 * elements_per_thread
        )


def keeps_row_in_memory(t: Tensor, row_axes: int, max_elements: int = MAX_BLOCK_ELEMENTS) -> bool:
    """True if intermediate rows are kept in memory instead of registers. (Written into the result,
    a softmax of 8192 rows of 1024 fp32 took 27.4 us; in registers 23.8.)"""
    return prod(a.size for a in t.axes[row_axes:]) > max_elements


def schedule_row_programs(
    t: Tensor, row_axes: int, rows_per_program: int = 1, max_elements: int = MAX_BLOCK_ELEMENTS
) -> Mapping[Tensor, Schedule]:
    """Return schedules with `rows_per_program` rows each; their stages are computed whole, up to
    max_elements at a time."""
    row = t.axes[row_axes - 1].name
    out: dict[Tensor, Schedule] = {}
    order, long, work = (
        computed_tensors([t]),
        keeps_row_in_memory(t, row_axes, max_elements),
        dict[Tensor, int](),
    )
    for s in order:
        found = reduction(s)
        if s is not t and found is None and s.rank == t.rank:
            assert s.body is not None
            some = sum(isinstance(e, Apply) and e.dtype != INDEX for e in subexpressions(s.body))
            work[s] = some + sum(work.get(x.tensor, 0) for x in set(loads(s.body)))
            if is_read_once(s, order) or (long and work[s] <= MAX_RECOMPUTED_OPERATIONS):
                out[s] = (Inline(),)
                continue
            work[s] = 0
        steps: list[Primitive] = []
        before, own = [a.name for a in s.axes[: row_axes - 1]], s.axes[row_axes - 1].name
        axes = list(found.axes if found is not None else s.axes[row_axes:])
        if s is not t:
            steps.append(ComputeAt(t.name, f"{row}.o" if rows_per_program > 1 else row))
        elif rows_per_program > 1:
            steps.append(Split(row, rows_per_program))
            before, own = [*before, f"{row}.o"], f"{row}.i"
        if rows_per_program > 1 and found is not None:
            kept = [a.name for a in s.axes[row_axes:]]
            steps.append(Reorder((*before, *kept, *(a.name for a in axes), own)))
        if axes:
            name = fuse_axes(steps, axes)
            n = prod(a.size for a in axes)
            if n > max_elements:
                size = best_step(n, max_elements)
                steps.append(Split(name, size) if found is None else split_sum(name, n, size))
                name = f"{name}.i"
            if rows_per_program > 1:
                outer, inner = (own, name) if found is None else (name, own)
                steps += [Unroll(outer), Vectorize(inner)]
            else:
                steps.append(Vectorize(name))
        elif rows_per_program > 1:
            steps.append(Vectorize(own))
        out[s] = tuple(steps)
    apart = [a.name for a in t.axes[: row_axes - 1]]
    apart.append(f"{row}.o" if rows_per_program > 1 else row)
    out[t] = (*out[t], *map(Parallel, apart))
    return out


def schedule_row_kernel(p: Problem, row_axes: int, option: Option) -> Choice:
    """Return the choice of an option."""
    t, knobs = p.tensor, dict(option.knobs)
    most = knobs.get("step", MAX_BLOCK_ELEMENTS)
    how = schedule_row_programs(t, row_axes, knobs.get("rows", 1), most)
    return Choice(option, t, how, in_place=keeps_row_in_memory(t, row_axes, most))


ROW_WISE = Algorithm(
    ("row_wise",), "rows: Softmax, LayerNormalization, and what follows", recognise_rows,
    row_options, schedule_row_kernel, exclusive=True,
)  # fmt: skip
