"""Small-M products on a GPU: a constant times two or more rows, but fewer than tensor cores take. A
program has all rows and a few columns, for which it reads the constant once."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from superopt.kernels.algorithms import contraction
from superopt.kernels.algorithms.gpu.blocks import (
    best_step,
    fuse_axes,
    memory_order_axes,
    split_sum,
)
from superopt.kernels.algorithms.problem import Problem
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
from superopt.te.expr.node import Axis, Reduce

MAX_BLOCK_PRODUCTS = 1 << 13  # products at a time
# columns, terms and warps, by their times in 12 products (not each was measured in each)
BLOCK_CANDIDATES = ((2, 1024, 2), (1, 1024, 2), (4, 512, 4), (2, 512, 1), (1, 1024, 8), (4, 256, 1))


def match_small_m(p: Problem) -> tuple[list[Axis], list[Axis]] | None:
    """Match a product with few rows whose terms are contiguous: (row axes, column axes); None
    otherwise."""
    c, found = contraction.match_contraction(p.tensor, p.constants, 1), reduction(p.tensor)
    if c is None or found is None or len(found.axes) != 1:
        return None
    order = memory_order_axes(p)
    rows, columns = ([a for a in order if a in x and a.size > 1] for x in (c.a_axes, c.b_axes))
    if not 1 < prod(a.size for a in rows) <= MIN_DOT_EXTENT // 2 or not columns:
        return None
    both = [a for a in order if a not in (*rows, *columns) and a.size > 1]
    return (rows, columns) if order and order[-1] in columns and not both else None


def small_m_options(p: Problem, reduction_expr: Reduce, **extra_knobs: int) -> Iterator[Option]:
    """Yield options, best first. extra_knobs: of each option."""
    sides = match_small_m(p)
    if sides is None:
        return
    rows, columns = (prod(a.size for a in x) for x in sides)
    high = 1 << (rows - 1).bit_length()
    for wide, deep, warps in BLOCK_CANDIDATES:
        terms = best_step(
            reduction_expr.axes[0].size, min(deep, MAX_BLOCK_PRODUCTS // (high * wide))
        )
        knobs = {"rows": min(wide, columns), "high": rows, "deep": terms, "warps": warps}
        yield Option.make("across", **knobs, **extra_knobs)


def small_m_schedule(p: Problem, o: Option) -> Schedule:
    """Return the schedule of such an option. Raises ValueError if the problem has none."""
    sides, found = match_small_m(p), reduction(p.tensor)
    if sides is None or found is None:
        raise ValueError(f"{o} is not an option of {p.tensor.name}")
    rows, columns = sides
    (k,) = found.axes
    rest = [a for a in memory_order_axes(p) if a not in (*rows, *columns)]
    steps: list[Primitive] = [Reorder(tuple(a.name for a in (*rest, *rows, *columns, k)))]
    row, column = fuse_axes(steps, rows), fuse_axes(steps, columns)
    steps += [Split(column, o["rows"]), split_sum(k.name, k.size, o["deep"])]
    outer = [*(a.name for a in rest), f"{column}.o"]
    steps.append(Reorder((*outer, f"{k.name}.o", f"{k.name}.i", row, f"{column}.i")))
    steps += map(Parallel, outer)
    return (*steps, Unroll(f"{k.name}.i"), Unroll(row), Vectorize(f"{column}.i"))
