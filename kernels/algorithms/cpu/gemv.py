"""GEMV on the CPU: one row times a row-major matrix that is not constant. The matrix is read once,
a few rows at a time, and added to accumulators that stay in a cache."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from superopt.kernels.algorithms.algorithm import Algorithm
from superopt.kernels.algorithms.contraction import Contraction, axis_stride
from superopt.kernels.algorithms.cpu.gemm import Product, match_product
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
from superopt.te.expr.tensor import Tensor

COLUMNS = (2048, 4096, 1024)  # of accumulators, best first
TERMS = (8, 4, 7, 6, 5, 3, 11, 13, 2, 1)  # rows of the matrix at a time, best first
MAX_TERMS_TRIED = 2


def recognise_gemv(p: Problem) -> Product | None:
    """Match one row times a row-major matrix that is not constant."""
    product, found = match_product(p), reduction(p.tensor)
    if product is None or found is None:
        return None
    c, n = product[0], product[0].b_axes[-1]
    if prod(a.size for a in c.a_axes) > 1 or c.b.tensor in p.constants or c.b.tensor in p.layouts:
        return None
    wide = p.tensor.axes[-1] == n and axis_stride(c.b, n) == 1 and n.size >= 2 * p.lanes
    return product if wide else None


def gemv_options(p: Problem, product: Product) -> Iterator[Option]:
    """Yield options, best first."""
    found = reduction(p.tensor)
    assert found is not None
    for columns in COLUMNS:
        for terms in [n for n in TERMS if found.axes[-1].size % n == 0][:MAX_TERMS_TRIED]:
            yield Option.make("gemv", columns=columns, terms=terms)


def schedule_gemv(p: Problem, product: Product, option: Option) -> Choice:
    """Return the choice of an option."""
    c, tiling = product
    how = _row_schedule(p.tensor, c, option["columns"], option["terms"], tiling.lanes)
    return Choice(option, p.tensor, {p.tensor: how})


GEMV = Algorithm(
    ("gemv",), "GEMV: a row times a matrix that is not constant", recognise_gemv, gemv_options,
    schedule_gemv,
)  # fmt: skip


def _row_schedule(t: Tensor, c: Contraction, columns: int, terms: int, lanes: int) -> Schedule:
    """Return the schedule of a vector-matrix product with a row-major matrix: a few matrix rows at
    a time, added to `columns` accumulators that stay in a cache."""
    n, found = c.b_axes[-1], reduction(t)
    assert found is not None
    rest = [x.name for x in t.axes if x != n]
    *outer, k = [x.name for x in found.axes]
    part, inner = f"{n.name}.o", f"{n.name}.i"
    steps: list[Primitive] = [
        Split(n.name, columns), Split(inner, 2 * lanes), Split(k, terms),
        Reorder((*rest, part, *outer, f"{k}.o", f"{inner}.o", f"{k}.i", f"{inner}.i")),
        Unroll(f"{k}.i"), Vectorize(f"{inner}.i"), *map(Parallel, (*rest, part)[:3]),
    ]  # fmt: skip
    return tuple(steps)
