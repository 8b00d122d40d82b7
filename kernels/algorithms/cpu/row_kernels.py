"""Row kernels on the CPU (softmax, norms): all that is computed of a row while it is cached."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

from superopt.kernels.algorithms.algorithm import Algorithm, Prediction, kib
from superopt.kernels.algorithms.contraction import axis_stride
from superopt.kernels.algorithms.cpu.partition import min_parts
from superopt.kernels.algorithms.problem import Choice, Problem
from superopt.kernels.loops.elementwise_schedule import TILE_ELEMENT_OPTIONS, TILE_ELEMENTS
from superopt.kernels.loops.loop_transforms import reduction
from superopt.kernels.loops.option import Option
from superopt.kernels.loops.schedule import (
    ComputeAt,
    Fuse,
    Inline,
    Parallel,
    Primitive,
    Schedule,
    Split,
    Vectorize,
)
from superopt.te.analysis.walk import computed_tensors, loads
from superopt.te.expr.node import Axis, Load, Reduce
from superopt.te.expr.tensor import Tensor

MIN_CHUNKS = 8
MAX_ROWS = 8  # at a time
L1_ROW_BYTES = 1 << 14  # of rows at a time
L2_RESULT_BYTES = 1 << 21  # of a result that stays in L2
STREAMED_BLOCK_BYTES = (
    2048  # at a time for larger results: memory absorbs so many while more is computed
)
MAX_BLOCK_TERMS = 4096  # of a sum at a time


def schedule_rows(
    t: Tensor, row_axes: int, lanes: int, threads: int = 1
) -> Mapping[Tensor, Schedule]:
    """Return the schedules of a tensor and its stages, which are computed in the loop over rows.
    lanes: elements at a time. threads: that share the rows."""
    row, some = t.axes[row_axes - 1].name, rows_per_block(t, row_axes, threads)
    split = f"{row}.o" if some > 1 else row
    out = schedule_row_stages(t, row_axes, lanes, split)
    chunks = [split if name == row else name for name in parallel_loops(t.axes[:row_axes], threads)]
    first = [Split(row, some)] if some > 1 else []
    out[t] = (*first, *out[t], *map(Parallel, chunks))
    return out


def schedule_row_stages(
    t: Tensor, row_axes: int, lanes: int, loop: str = ""
) -> dict[Tensor, Schedule]:
    """Return the schedules of a row kernel's stages as part of another kernel. loop: of `t`, at
    which stages are computed."""
    row = loop or t.axes[row_axes - 1].name
    out: dict[Tensor, Schedule] = {}
    order = computed_tensors([t])
    for s in order:
        found = reduction(s)
        if s is not t and found is None and s.rank == t.rank and is_read_once(s, order):
            out[s] = (Inline(),)
            continue
        steps = [] if s is t else [ComputeAt(t.name, row)]
        if found is not None:
            out[s] = (*steps, *lane_reduction(found))
        else:
            out[s] = (*steps, *_vectors(s.axes[-1], lanes if s.rank == t.rank else 1))
    return out


def rows_per_block(t: Tensor, row_axes: int, threads: int = 1) -> int:
    """Return the rows at a time, within L1: their latencies overlap. With 4 KiB or more, layer
    norms of 16 MiB took 1.4 to 1.8 times as long."""
    order = computed_tensors([t])
    kept = 1 + sum(s.rank == t.rank and reduction(s) is None for s in order if s is not t)
    row = prod(a.size for a in t.axes[row_axes:]) * max(t.dtype.bits // 8, 1)
    rows = prod(a.size for a in t.axes[:row_axes])
    room = (
        L1_ROW_BYTES // (kept * row)
        if rows * row <= L2_RESULT_BYTES
        else STREAMED_BLOCK_BYTES // row
    )
    size = t.axes[row_axes - 1].size
    most = max(1, min(MAX_ROWS, room, rows // min_parts(threads, MIN_CHUNKS), size))
    # a divisor recomputes no rows, and allows in-place stages (in_place_stages.py)
    return next((n for n in range(most, most // 2, -1) if size % n == 0), most)


def is_read_once(s: Tensor, tensors: Sequence[Tensor]) -> bool:
    """True if the stage is read in one place, and need not be stored."""
    read = [x for o in tensors if o.body is not None for x in loads(o.body) if x.tensor is s]
    return len(set(read)) == 1


def parallel_loops(axes: Sequence[Axis], threads: int = 1) -> Iterator[str]:
    """Yield the outer loops that threads share: enough chunks for all threads, and no more, since
    each is a call."""
    chunks = 1
    for a in axes:
        if chunks >= min_parts(threads, MIN_CHUNKS):
            break
        yield a.name
        chunks *= a.size


def _vectors(last: Axis, lanes: int) -> list[Primitive]:
    if last.size <= lanes:
        return [Vectorize(last.name)]
    return [Split(last.name, lanes), Vectorize(f"{last.name}.i")]


def lane_reduction(
    reduction_expr: Reduce, max_terms: int = MAX_BLOCK_TERMS, is_example: bool = False
) -> list[Primitive]:
    """Return primitives that reduce across lanes: all terms, or a divisor of a long sum. Contiguous
    axes are fused; of the example of a symbolic sum only two, since the vectors of a product of
    several symbolic sizes would be computed term by term."""
    *outer, last = reduction_expr.axes
    if is_example:
        outer = outer[-1:]
    steps: list[Primitive] = []
    name, extent = last.name, last.size
    while outer and all(
        _is_contiguous_with(x, outer[-1], last, extent) for x in loads(reduction_expr.body)
    ):
        a = outer.pop()
        steps.append(Fuse(a.name, name))
        name, extent = f"{a.name}_{name}", extent * a.size
    if extent <= max_terms:
        return [*steps, Vectorize(name)]
    factor = next((n for n in range(max_terms, max_terms // 16, -1) if extent % n == 0), 0)
    if factor:
        steps += [Split(name, factor), Vectorize(f"{name}.i")]
    return steps


def _is_contiguous_with(x: Load, outer: Axis, last: Axis, extent: int) -> bool:
    """True if the outer axis continues where `extent` elements along the last one end."""
    far, near = axis_stride(x, outer), axis_stride(x, last)
    return far is not None and near is not None and far == near * extent


def recognise_rows(p: Problem) -> int | None:
    """Return the number of axes that select a row; None for another problem."""
    return p.row_axes or None


def row_options(p: Problem, row_axes: int) -> Iterator[Option]:
    """Yield the options: elements of a row at a time."""
    yield from (Option.make("row_wise", lanes=n) for n in TILE_ELEMENT_OPTIONS)


def predict_rows(p: Problem, row_axes: int) -> Prediction:
    """Return the best option."""
    return Prediction(Option.make("row_wise", lanes=row_elements(p)))


def row_elements(p: Problem) -> int:
    """Return the elements of rows at a time: with few registers all of a short row, else as few as
    hide latency (18 softmaxes and norms of 33 to 30,522 elements)."""
    if not p.processor.has_few_registers:
        return TILE_ELEMENTS
    return 2 * TILE_ELEMENTS if p.tensor.axes[-1].size <= 2 * TILE_ELEMENTS else TILE_ELEMENTS // 4


def schedule_row_kernel(p: Problem, row_axes: int, option: Option) -> Choice:
    """Return the choice of an option."""
    how = schedule_rows(p.tensor, row_axes, option["lanes"], p.threads)
    return Choice(option, p.tensor, how, in_place=True)


def row_limits(p: Problem, row_axes: int, o: Option) -> Iterator[str]:
    """Yield what bounds the rows and elements at a time."""
    rows = rows_per_block(p.tensor, row_axes, p.threads)
    yield (
        f"{rows} of at most {MAX_ROWS} rows at a time, whose stages fit in {kib(L1_ROW_BYTES)} of"
        f" L1; for results beyond {kib(L2_RESULT_BYTES)}, {kib(STREAMED_BLOCK_BYTES)} of the result"
    )
    yield f"{o['lanes']} elements of a row at a time, enough to hide latencies"


ROW_WISE = Algorithm(
    ("row_wise",), "rows: Softmax, LayerNormalization, and what follows", recognise_rows,
    row_options, schedule_row_kernel, predict_rows, exclusive=True, limits=row_limits,
)  # fmt: skip
