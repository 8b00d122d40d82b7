"""Schedules of reductions that are no contractions: windows, depthwise convolutions, rows.

along   vectors of neighbouring results, each lane with a reduction of its own; several
        vectors at a time, to hide latency
across  vectors of terms, whose lanes are combined at the end: for contiguous terms, such as
        the rows of a softmax
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import prod

from superopt.kernels.contraction import strides
from superopt.kernels.layout import Layout, Scatter, lying
from superopt.kernels.option import Option
from superopt.kernels.rows import SUMMED, shared, summed
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
from superopt.te.affine import affine
from superopt.te.expr import Tensor
from superopt.te.node import Axis, Const, Expr, Load, Reduce
from superopt.te.walk import axes_of, loads

ROWS = 8  # accumulators at a time
OTHERS = 2  # registers that hold no accumulator
FEW = 8  # of a reduction
WINDOW = 32  # elements
WIDE = 64  # of the result at a time, if there is one row


def options(
    t: Tensor, layouts: Mapping[Tensor, Layout | Scatter], lanes: int, registers: int
) -> list[tuple[float, Option]]:
    """Return options with ranks, best 0; an empty list if `t` is no single reduction."""
    found = reduction(t)
    if found is None:
        return []
    read = [x for x in loads(found.body) if x.tensor.shape]
    if not t.axes:
        near = all(strides(x, found.axes[-1]) in (0, 1) for x in read)
        plain = near and not any(x.tensor in layouts for x in read)
        several = plain and found.axes[-1].size > 1
        return [(0.0, Option.of("across", lanes=SUMMED))] if several else []
    n, m, block = _frame(t, layouts)
    last = found.axes[-1]
    if _rows(read, n, last, layouts):
        some = (SUMMED, SUMMED // 4, SUMMED // 16)
        return [(float(k), Option.of("across", lanes=w)) for k, w in enumerate(some)]
    picked = any(_within(read, n, a) for a in found.axes)
    wide = block or (WIDE if m is None or m.size < 2 else lanes if picked else lanes * 2)
    most = max(1, min(ROWS, (registers - OTHERS) // -(-wide // lanes)))
    rows = 1 if m is None else _even(m.size, most)
    if m is not None and not block and n.size <= 2 * WIDE and _apart(read, n, m):
        wide, rows = min(WIDE, ROWS * lanes), 1
    out = [(0.0, Option.of("along", wide=wide, rows=rows))]
    for w in (wide,) if block else (lanes, 2 * lanes, 4 * lanes):
        for r in {1} if m is None else {1, 2, 4, rows, ROWS}:
            if (w, r) != (wide, rows) and w * r <= 16 * lanes:
                out.append((1.0 + abs(w * r - wide * rows), Option.of("along", wide=w, rows=r)))
    return out


def scheduled(
    t: Tensor,
    layouts: Mapping[Tensor, Layout | Scatter],
    constants: Collection[Tensor],
    option: Option,
) -> tuple[Schedule, tuple[Tensor, ...]]:
    """Return a schedule, and the constants that are packed for it."""
    found = reduction(t)
    assert found is not None
    if option.algorithm == "across":
        return _across(t, found, option["lanes"]), ()
    n, m, block = _frame(t, layouts)
    read = [x for x in loads(found.body) if x.tensor.shape]
    over = sorted(found.axes, key=lambda a: _within(read, n, a))
    few = _few(over) if found.fn in ("max", "min") or _window(read, t, over) else []
    written = [a.name for a in over if a in few or _within(read, n, a)]
    how = _along(t, over, written, n, m, bool(block), option["wide"], option["rows"])
    return how, tuple(_packed(read, n, constants))


def _frame(t: Tensor, layouts: Mapping[Tensor, Layout | Scatter]) -> tuple[Axis, Axis | None, int]:
    """Return the vector axis of the result, the next axis, and the vector axis's block."""
    out = lying(layouts.get(t), t.rank)
    order = list(dict.fromkeys(t.axes[p.axis] for p in reversed(out.parts)))
    order = [a for a in order if a.size > 1] or order[:1]
    block = next((p.block for p in out.parts if p.within and t.axes[p.axis] == order[0]), 0)
    return order[0], order[1] if len(order) > 1 else None, block


def _apart(read: list[Load], n: Axis, m: Axis) -> bool:
    """True if each row of results reads a contiguous range that no other row reads: rows together
    would be as many streams of short runs."""
    return all(
        all(isinstance(i, Axis | Const) for i in x.index) and m in x.index and strides(x, n) == 1
        for x in read
    )


def _even(extent: int, most: int) -> int:
    """Return the number of rows at a time that recomputes few."""
    return min(range(1, most + 1), key=lambda r: (-(-extent // r) * (r + 1), -r))


def _rows(
    read: list[Load], lane: Axis, last: Axis, layouts: Mapping[Tensor, Layout | Scatter]
) -> bool:
    """True if neighbouring terms are contiguous, and neighbouring results are not."""
    if last.size < 4:
        return False
    if any(x.tensor in layouts for x in read):  # images: their channels are contiguous
        some = [x for x in read if any(last in axes_of(i) for i in x.index)]
        return bool(some) and all(_beside(x, layouts) == last for x in some)
    along = [strides(x, last) for x in read]
    other = [strides(x, lane) for x in read]
    if lane.size < 4:
        return all(s in (0, 1) for s in along)
    return 1 in along and all(s in (0, 1) for s in along) and any(s not in (0, 1) for s in other)


def _beside(x: Load, layouts: Mapping[Tensor, Layout | Scatter]) -> Expr | None:
    """Return the index of the contiguous dimension."""
    layout = layouts.get(x.tensor)
    if isinstance(layout, Scatter):
        return None
    return x.index[lying(layout, x.tensor.rank).parts[-1].axis]


def _packed(read: list[Load], lane: Axis, constants: Collection[Tensor]) -> list[Tensor]:
    """Return the constants that are not contiguous along the lanes."""
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
        and not any(True for i in x.index for _ in loads(i))  # rows selected by data
    ]


def _across(t: Tensor, found: Reduce, lanes: int) -> Schedule:
    return (*summed(found, lanes), *(Parallel(name) for name in shared(t.axes)))


def _within(read: list[Load], lane: Axis, a: Axis) -> bool:
    """True if the axis selects one of a few neighbours and the lane which (channels of groups): a
    vector of all is loaded once, and shuffled."""
    return 1 < a.size <= FEW and any(
        {a, lane} <= axes_of(i) and affine(i) is None for x in read for i in x.index
    )


def _window(read: list[Load], t: Tensor, over: Sequence[Axis]) -> bool:
    """True if windows of neighbouring results overlap."""
    indices = [set(axes_of(i)) for x in read for i in x.index]
    return any(any(a in i for a in over) and any(a in i for a in t.axes) for i in indices)


def _few(over: Sequence[Axis]) -> list[Axis]:
    """Return the innermost window axes to unroll: NaN tests are then shared, and short loops
    vanish."""
    sizes = [prod(a.size for a in over[n:]) for n in range(len(over))]
    return [a for a, size in zip(over, sizes, strict=True) if size <= WINDOW]


def _along(
    t: Tensor, over: Sequence[Axis], written: Collection[str], n: Axis, m: Axis | None,
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
    steps.append(Reorder((*first, *(a.name for a in over), *tile)))
    steps += [Unroll(x) for x in (*written, *tile[:-1])]
    steps.append(Vectorize(tile[-1]))
    return (*steps, *(Parallel(x) for x in first[:3]))
