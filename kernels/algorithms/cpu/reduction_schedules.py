"""Reductions on the CPU that are no contractions: windows, depthwise convolutions, rows.

vertical_reduction    vectors of neighbouring results, each lane with a reduction of its own;
                      several vectors at a time, to hide latency
horizontal_reduction  vectors of terms, whose lanes are combined at the end: for contiguous terms,
                      such as the rows of a softmax
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import prod

from superopt.kernels.algorithms.algorithm import Algorithm
from superopt.kernels.algorithms.contraction import axis_stride
from superopt.kernels.algorithms.cpu.row_kernels import (
    MAX_BLOCK_TERMS,
    lane_reduction,
    parallel_loops,
)
from superopt.kernels.algorithms.problem import Choice, Problem, remember_match
from superopt.kernels.loops.layout import Layout, ScatteredLayout, effective_layout
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
from superopt.te.analysis.affine import affine
from superopt.te.analysis.walk import index_axes, loads
from superopt.te.expr.node import Axis, Const, Expr, Load, Reduce
from superopt.te.expr.tensor import Tensor

MAX_ROWS = 8  # accumulators at a time
NON_SUM_REGISTERS = 2  # registers that hold no accumulator
MAX_UNROLLED_TERMS = 8  # of a reduction
MAX_UNROLLED_WINDOW = 32  # elements
SINGLE_ROW_ELEMENTS = 64  # of the result at a time, if there is one row


def reduction_options(
    t: Tensor, layouts: Mapping[Tensor, Layout | ScatteredLayout], lanes: int, registers: int
) -> list[tuple[float, Option]]:
    """Return options with ranks, best 0; an empty list if `t` is no single reduction."""
    found = reduction(t)
    if found is None:
        return []
    read = [x for x in loads(found.body) if x.tensor.shape]
    if not t.axes:
        near = all(axis_stride(x, found.axes[-1]) in (0, 1) for x in read)
        plain = near and not any(x.tensor in layouts for x in read)
        several = plain and found.axes[-1].size > 1
        return (
            [(0.0, Option.make("horizontal_reduction", lanes=MAX_BLOCK_TERMS))] if several else []
        )
    n, m, block = _vector_axes(t, layouts)
    last = found.axes[-1]
    if _has_contiguous_terms(read, n, last, layouts):
        some = (MAX_BLOCK_TERMS, MAX_BLOCK_TERMS // 4, MAX_BLOCK_TERMS // 16)
        return [
            (float(k), Option.make("horizontal_reduction", lanes=w)) for k, w in enumerate(some)
        ]
    picked = any(_selects_within_group(read, n, a) for a in found.axes)
    wide = block or (
        SINGLE_ROW_ELEMENTS if m is None or m.size < 2 else lanes if picked else lanes * 2
    )
    most = max(1, min(MAX_ROWS, (registers - NON_SUM_REGISTERS) // -(-wide // lanes)))
    rows = 1 if m is None else _balanced_rows(m.size, most)
    if (
        m is not None
        and not block
        and n.size <= 2 * SINGLE_ROW_ELEMENTS
        and _reads_disjoint_rows(read, n, m)
    ):
        wide, rows = min(SINGLE_ROW_ELEMENTS, MAX_ROWS * lanes), 1
    out = [(0.0, Option.make("vertical_reduction", width=wide, rows=rows))]
    for w in (wide,) if block else (lanes, 2 * lanes, 4 * lanes):
        for r in {1} if m is None else {1, 2, 4, rows, MAX_ROWS}:
            if (w, r) != (wide, rows) and w * r <= 16 * lanes:
                out.append(
                    (
                        1.0 + abs(w * r - wide * rows),
                        Option.make("vertical_reduction", width=w, rows=r),
                    )
                )
    return out


def schedule_reduction(
    t: Tensor,
    layouts: Mapping[Tensor, Layout | ScatteredLayout],
    constants: Collection[Tensor],
    option: Option,
    is_example: bool = False,
) -> tuple[Schedule, tuple[Tensor, ...]]:
    """Return a schedule, and the constants that are packed for it. is_example: see Problem."""
    found = reduction(t)
    assert found is not None
    if option.algorithm == "horizontal_reduction":
        return _lane_reduction_schedule(t, found, option["lanes"], is_example), ()
    n, m, block = _vector_axes(t, layouts)
    read = [x for x in loads(found.body) if x.tensor.shape]
    over = sorted(found.axes, key=lambda a: _selects_within_group(read, n, a))
    few = (
        _unrolled_axes(over)
        if found.fn in ("max", "min") or _has_overlapping_windows(read, t, over)
        else []
    )
    written = [a.name for a in over if a in few or _selects_within_group(read, n, a)]
    how = _result_vector_schedule(
        t, over, written, n, m, bool(block), option["width"], option["rows"]
    )
    return how, tuple(_packed_constants(read, n, constants))


def _vector_axes(
    t: Tensor, layouts: Mapping[Tensor, Layout | ScatteredLayout]
) -> tuple[Axis, Axis | None, int]:
    """Return the vector axis of the result, the next axis, and the vector axis's block."""
    out = effective_layout(layouts.get(t), t.rank)
    order = list(dict.fromkeys(t.axes[p.axis] for p in reversed(out.parts)))
    order = [a for a in order if a.size > 1] or order[:1]
    block = next((p.block for p in out.parts if p.is_inner and t.axes[p.axis] == order[0]), 0)
    return order[0], order[1] if len(order) > 1 else None, block


def _reads_disjoint_rows(read: list[Load], n: Axis, m: Axis) -> bool:
    """True if each row of results reads a contiguous range that no other row reads: rows together
    would be as many streams of short runs."""
    return all(
        all(isinstance(i, Axis | Const) for i in x.index)
        and m in x.index
        and axis_stride(x, n) == 1
        for x in read
    )


def _balanced_rows(extent: int, max_rows: int) -> int:
    """Return the number of rows at a time that recomputes few."""
    return min(range(1, max_rows + 1), key=lambda r: (-(-extent // r) * (r + 1), -r))


def _has_contiguous_terms(
    read: list[Load], lane: Axis, last: Axis, layouts: Mapping[Tensor, Layout | ScatteredLayout]
) -> bool:
    """True if neighbouring terms are contiguous, and neighbouring results are not."""
    if last.size < 4:
        return False
    if any(x.tensor in layouts for x in read):  # images: their channels are contiguous
        some = [x for x in read if any(last in index_axes(i) for i in x.index)]
        return bool(some) and all(_contiguous_index(x, layouts) == last for x in some)
    along = [axis_stride(x, last) for x in read]
    other = [axis_stride(x, lane) for x in read]
    if lane.size < 4:
        return all(s in (0, 1) for s in along)
    return 1 in along and all(s in (0, 1) for s in along) and any(s not in (0, 1) for s in other)


def _contiguous_index(x: Load, layouts: Mapping[Tensor, Layout | ScatteredLayout]) -> Expr | None:
    """Return the index of the contiguous dimension."""
    layout = layouts.get(x.tensor)
    if isinstance(layout, ScatteredLayout):
        return None
    return x.index[effective_layout(layout, x.tensor.rank).parts[-1].axis]


def _packed_constants(read: list[Load], lane: Axis, constants: Collection[Tensor]) -> list[Tensor]:
    """Return the constants that are not contiguous along the lanes."""
    counts: dict[Tensor, int] = {}
    for x in read:
        counts[x.tensor] = counts.get(x.tensor, 0) + 1
    return [
        x.tensor
        for x in read
        if x.tensor in constants
        and counts[x.tensor] == 1
        and any(lane in index_axes(i) for i in x.index)
        and axis_stride(x, lane) != 1
        and not any(True for i in x.index for _ in loads(i))  # rows selected by data
    ]


def _lane_reduction_schedule(
    t: Tensor, reduction_expr: Reduce, lanes: int, is_example: bool
) -> Schedule:
    return (
        *lane_reduction(reduction_expr, lanes, is_example),
        *(Parallel(name) for name in parallel_loops(t.axes)),
    )


def _selects_within_group(read: list[Load], lane: Axis, a: Axis) -> bool:
    """True if the axis selects one of a few neighbours and the lane which (channels of groups): a
    vector of all is loaded once, and shuffled."""
    return 1 < a.size <= MAX_UNROLLED_TERMS and any(
        {a, lane} <= index_axes(i) and affine(i) is None for x in read for i in x.index
    )


def _has_overlapping_windows(read: list[Load], t: Tensor, reduction_axes: Sequence[Axis]) -> bool:
    """True if windows of neighbouring results overlap."""
    indices = [set(index_axes(i)) for x in read for i in x.index]
    return any(any(a in i for a in reduction_axes) and any(a in i for a in t.axes) for i in indices)


def _unrolled_axes(reduction_axes: Sequence[Axis]) -> list[Axis]:
    """Return the innermost window axes to unroll: NaN tests are then shared, and short loops
    vanish."""
    sizes = [prod(a.size for a in reduction_axes[n:]) for n in range(len(reduction_axes))]
    return [a for a, size in zip(reduction_axes, sizes, strict=True) if size <= MAX_UNROLLED_WINDOW]


def _result_vector_schedule(
    t: Tensor, reduction_axes: Sequence[Axis], unrolled: Collection[str], n: Axis, m: Axis | None,
    blocked: bool, wide: int, rows: int,
) -> Schedule:  # fmt: skip
    steps: list[Primitive] = [Split(n.name, wide)]
    tile = [f"{n.name}.i"]
    first = [a.name for a in t.axes if a not in (n, m)]
    place = min(1, len(first)) if blocked else len(first)
    first.insert(place, f"{n.name}.o")
    if m is not None:
        steps.append(Split(m.name, rows))
        tile.insert(0, f"{m.name}.i")
        first.append(f"{m.name}.o")
    steps.append(Reorder((*first, *(a.name for a in reduction_axes), *tile)))
    steps += [Unroll(x) for x in (*unrolled, *tile[:-1])]
    steps.append(Vectorize(tile[-1]))
    return (*steps, *(Parallel(x) for x in first[:3]))


Ranked = list[tuple[float, Option]]


@remember_match
def recognise_reduction(p: Problem) -> Ranked | None:
    """Return the ranked options of a reduction."""
    found = reduction(p.tensor)
    if found is None:
        return None
    # a quantized result has more elements in a vector than the sums that it is rounded from
    lanes = max(p.width * 8 // max(p.tensor.dtype.bits, found.dtype.bits), 1)
    return reduction_options(p.tensor, p.layouts, lanes, p.processor.vector_registers) or None


def ranked_options(p: Problem, ranked: Ranked) -> list[Option]:
    """Return the options, best first."""
    return [option for _, option in sorted(ranked, key=lambda x: x[0])]


def schedule_single_reduction(p: Problem, ranked: Ranked, option: Option) -> Choice:
    """Return the choice of an option."""
    how, packed = schedule_reduction(p.tensor, p.layouts, p.constants, option, p.is_example)
    return Choice(option, p.tensor, {p.tensor: how}, packed)


REDUCTION = Algorithm(
    ("vertical_reduction", "horizontal_reduction"),
    "reductions: pooling, depthwise convolution, ReduceSum",
    recognise_reduction,
    ranked_options,
    schedule_single_reduction,
)
