"""Small-M products on a GPU: a constant times two or more rows, but fewer than tensor cores take. A
program has all rows and a few columns, for which it reads the constant once. With 5 to 8 rows,
operands may also be swapped: tensor cores need fewer columns than rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from math import prod

from superopt.kernels.algorithms import contraction
from superopt.kernels.algorithms.algorithm import Algorithm
from superopt.kernels.algorithms.gpu.block_reduction import (
    contiguous_problem,
    has_contiguous_terms,
    transposed_choice,
)
from superopt.kernels.algorithms.gpu.blocks import (
    best_step,
    fuse_axes,
    memory_order_axes,
    split_sum,
)
from superopt.kernels.algorithms.gpu.gemm import DerivedConstants, product_choice
from superopt.kernels.algorithms.gpu.gemm_cost_model import rank_options
from superopt.kernels.algorithms.gpu.matrix_product import MatrixProduct, match_matrix_product
from superopt.kernels.algorithms.problem import Choice, Problem, remember_match
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
from superopt.te.expr.node import Axis

MAX_BLOCK_PRODUCTS = 1 << 13  # products at a time
# elements of a constant from which swapped operands come first; options of these
MIN_SWAPPED_FIRST_ELEMENTS, MAX_SWAPPED_OPTIONS = 1 << 21, 8
# columns, terms and warps, by their times in 12 products (not each was measured in each)
BLOCK_CANDIDATES = ((2, 1024, 2), (1, 1024, 2), (4, 512, 4), (2, 512, 1), (1, 1024, 8), (4, 256, 1))


def match_small_m(p: Problem) -> tuple[list[Axis], list[Axis]] | None:
    """Match a product with few rows whose terms are contiguous: (row axes, column axes); None
    otherwise."""
    c, found = contraction.match_contraction(p.tensor, p.constants, 1), reduction(p.tensor)
    if c is None or found is None or len(found.axes) != 1:
        return None
    order = memory_order_axes(p)
    rows, columns = (
        [a for a in order if a in x and a.extent not in (0, 1)] for x in (c.a_axes, c.b_axes)
    )
    if not 1 < prod(a.size for a in rows) <= MIN_DOT_EXTENT // 2 or not columns:
        return None
    both = [a for a in order if a not in (*rows, *columns) and a.extent not in (0, 1)]
    return (rows, columns) if order and order[-1] in columns and not both else None


@dataclass(frozen=True, slots=True)
class SmallMGemm:
    """A product with few rows. problem: with contiguous terms; constants: transposed for that;
    swapped: the product with swapped operands, if tensor cores take it."""

    problem: Problem
    constants: DerivedConstants | None
    swapped: MatrixProduct | None


@remember_match
def recognise_small_m(p: Problem) -> SmallMGemm | None:
    """Match a product with too few rows for tensor cores."""
    found = reduction(p.tensor)
    if found is None:
        return None
    problem, constants = contiguous_problem(p) or (p, None)
    if constants is None and not has_contiguous_terms(p, found):
        return None
    swapped = match_matrix_product(p, swapped=True)
    if swapped is None and match_small_m(problem) is None:
        return None
    return SmallMGemm(problem, constants, swapped)


def small_m_options(p: Problem, match: SmallMGemm) -> Iterator[Option]:
    """Yield options, best first: of large constants with swapped operands."""
    m = match.swapped
    swapped = [] if m is None else islice(rank_options(m), MAX_SWAPPED_OPTIONS)
    own = _column_options(match)
    large = m is not None and m.sizes[0] * m.sizes[2] >= MIN_SWAPPED_FIRST_ELEMENTS
    yield from (*swapped, *own) if large else (*own, *swapped)


def _column_options(match: SmallMGemm) -> Iterator[Option]:
    sides, reduction_expr = match_small_m(match.problem), reduction(match.problem.tensor)
    if sides is None or reduction_expr is None:
        return
    rows, columns = (prod(a.size for a in x) for x in sides)
    high = 1 << (rows - 1).bit_length()
    more = {} if match.constants is None else {"transposed": 1}
    for wide, k_block, warps in BLOCK_CANDIDATES:
        terms = best_step(
            reduction_expr.axes[0].size, min(k_block, MAX_BLOCK_PRODUCTS // (high * wide))
        )
        knobs = {"columns": min(wide, columns), "rows": rows, "k_block": terms, "warps": warps}
        yield Option.make("small_m_gemm", **knobs, **more)


def schedule_small_m(p: Problem, match: SmallMGemm, option: Option) -> Choice:
    """Return the choice of an option."""
    if option.algorithm != "small_m_gemm":
        if match.swapped is None:
            raise ValueError(f"{option}: tensor cores do not take {p.tensor.name}")
        return product_choice(p, match.swapped, option)
    how = small_m_schedule(match.problem, option)
    if match.constants is None:
        return Choice(option, p.tensor, {p.tensor: how})
    return transposed_choice(option, match.problem, match.constants, how)


SMALL_M_GEMM = Algorithm(
    ("small_m_gemm", "gemm", "split_k_gemm"),
    "GEMM with few rows: all rows and a few columns, or operands swapped for tensor cores",
    recognise_small_m,
    small_m_options,
    schedule_small_m,
)


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
    steps += [Split(column, o["columns"]), split_sum(k.name, k.size, o["k_block"])]
    outer = [*(a.name for a in rest), f"{column}.o"]
    steps.append(Reorder((*outer, f"{k.name}.o", f"{k.name}.i", row, f"{column}.i")))
    steps += map(Parallel, outer)
    return (*steps, Unroll(f"{k.name}.i"), Unroll(row), Vectorize(f"{column}.i"))
