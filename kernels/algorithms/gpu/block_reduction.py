"""Reductions on a GPU: a block of terms for several results at a time, if terms are contiguous or
results are few."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from superopt.kernels.algorithms.algorithm import Algorithm
from superopt.kernels.algorithms.contraction import match_contraction
from superopt.kernels.algorithms.gpu.blocks import (
    MULTIPROCESSORS,
    best_step,
    fuse_axes,
    memory_order_axes,
    memory_stride,
    result_elements,
    split_sum,
)
from superopt.kernels.algorithms.gpu.gemm import DerivedConstants, with_contiguous_terms
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
from superopt.kernels.loops.substitution import scatter_layout
from superopt.kernels.triton.dot_limits import MIN_DOT_EXTENT
from superopt.te.analysis.walk import index_axes, loads
from superopt.te.expr.node import Axis, Reduce

MAX_BLOCK_TERMS = 1024  # of a sum at a time
MAX_BLOCK_SUM_RESULTS = 512  # results up to which terms are taken in blocks, not one by one
MIN_RESULTS_PER_SM = 64  # for each multiprocessor; with fewer, sums are computed one at a time
# results that are read contiguously; and terms of each, at most
ADJACENT_RESULTS, MAX_ADJACENT_TERMS = 16, 512


@dataclass(frozen=True, slots=True)
class BlockReduction:
    """A reduction. transposed: the problem with a constant whose terms are contiguous, and that
    constant; None if they are already. in_blocks: blocks of terms are expected to pay for the
    problem as it is."""

    reduction_expr: Reduce
    transposed: tuple[Problem, DerivedConstants] | None
    in_blocks: bool


@remember_match
def recognise_block_reduction(p: Problem) -> BlockReduction | None:
    """Match a reduction with contiguous terms or few results."""
    found = reduction(p.tensor)
    if found is None:
        return None
    transposed, results = contiguous_problem(p), result_elements(p.tensor)
    n = prod(a.size for a in found.axes)
    few = results < MIN_RESULTS_PER_SM * MULTIPROCESSORS and n >= MIN_RESULTS_PER_SM
    few = few or (results <= MAX_BLOCK_SUM_RESULTS and n >= ADJACENT_RESULTS)
    in_blocks = few or has_contiguous_terms(p, found)
    return BlockReduction(found, transposed, in_blocks) if in_blocks or transposed else None


def block_options(p: Problem, match: BlockReduction) -> Iterator[Option]:
    """Yield options, best first."""
    if match.transposed is not None:
        yield _block_option(match.transposed[0], match.reduction_expr, transposed=1)
    if match.in_blocks:
        yield _block_option(p, match.reduction_expr)


def schedule_blocks(p: Problem, match: BlockReduction, option: Option) -> Choice:
    """Return the choice of an option."""
    if match.transposed is None or "transposed" not in dict(option.knobs):
        return Choice(option, p.tensor, {p.tensor: _block_schedule(p, option)})
    problem, constants = match.transposed
    return transposed_choice(option, problem, constants, _block_schedule(problem, option))


def transposed_choice(
    option: Option, problem: Problem, constants: DerivedConstants, how: Schedule
) -> Choice:
    """Return the choice of a problem with transposed constants."""
    t = problem.tensor
    layout = scatter_layout(t, problem.layouts.get(t), t.axes, t.axes)
    return Choice(option, t, {t: how}, (), layout, derived_constants=constants)


BLOCK_REDUCTION = Algorithm(
    ("block_reduction",), "reductions with contiguous terms or few results, GEMV",
    recognise_block_reduction, block_options, schedule_blocks,
)  # fmt: skip


@remember_match
def contiguous_problem(p: Problem) -> tuple[Problem, DerivedConstants] | None:
    """Return the problem with the terms of its constant contiguous, for few rows; None if they are
    already, or there is no constant."""
    c, found = match_contraction(p.tensor, p.constants, 1), reduction(p.tensor)
    if c is None or found is None or c.b.tensor not in p.constants or not c.b_axes:
        return None
    last = found.axes[-1]
    if last.size < MIN_DOT_EXTENT or memory_stride(c.b, last, p.layouts) == 1:
        return None
    own = with_contiguous_terms(p, c.b, last, c.b_axes)
    again = reduction(own[0].tensor)
    return own if again is not None and has_contiguous_terms(own[0], again) else None


def _block_option(p: Problem, reduction_expr: Reduce, **extra_knobs: int) -> Option:
    """Return an option with blocks of rows and terms."""
    beside = bool(extra_knobs) or has_contiguous_terms(p, reduction_expr)
    most = max(1, min(8, result_elements(p.tensor) // (4 * MULTIPROCESSORS)))
    rows = min(
        1 << most.bit_length() - 1 if beside else ADJACENT_RESULTS,
        max(result_elements(p.tensor), 1),
    )
    k_block = best_step(
        prod(a.size for a in _mergeable_axes(p, reduction_expr)),
        MAX_BLOCK_TERMS if beside else MAX_ADJACENT_TERMS,
    )
    warps = 4 if k_block * rows > 512 else 1
    return Option.make("block_reduction", rows=rows, k_block=k_block, warps=warps, **extra_knobs)


def _block_schedule(p: Problem, o: Option) -> Schedule:
    found = reduction(p.tensor)
    assert found is not None
    order = memory_order_axes(p)
    last = _mergeable_axes(p, found)
    outer = [a.name for a in found.axes if a not in last]
    steps: list[Primitive] = [Reorder((*(a.name for a in order), *(a.name for a in found.axes)))]
    k = fuse_axes(steps, last)
    terms = split_sum(k, prod(a.size for a in last), o["k_block"])
    if not order:
        return (*steps, terms, Reorder((*outer, f"{k}.o", f"{k}.i")), Unroll(f"{k}.i"))
    name = fuse_axes(steps, order)
    steps += [Split(name, o["rows"]), terms]
    steps.append(Reorder((f"{name}.o", *outer, f"{k}.o", f"{k}.i", f"{name}.i")))
    return (*steps, Parallel(f"{name}.o"), Unroll(f"{k}.i"), Vectorize(f"{name}.i"))


def _mergeable_axes(p: Problem, reduction_expr: Reduce) -> list[Axis]:
    """Return the innermost reduction axes that can be fused: equally spaced in all operands."""
    last: list[Axis] = []
    over = set(reduction_expr.axes)
    some = [x for x in loads(reduction_expr.body) if any(over & index_axes(i) for i in x.index)]
    for a in reversed(reduction_expr.axes):
        inner = [b for b in last if b.extent not in (0, 1)]
        for x in some if inner and a.extent not in (0, 1) else ():
            near, far = (memory_stride(x, b, p.layouts) for b in (inner[0], a))
            if near is None or far != near * prod(a.size for a in inner):
                return last
        last.insert(0, a)
    return last


def has_contiguous_terms(p: Problem, reduction_expr: Reduce) -> bool:
    """True if the terms of the sum are contiguous, and the elements of the result are not."""
    last = reduction_expr.axes[-1]
    order = [a for a in memory_order_axes(p) if a.extent not in (0, 1)]
    if last.size < 32:
        return False
    some = [x for x in loads(reduction_expr.body) if x.tensor.shape]
    along = [memory_stride(x, last, p.layouts) for x in some]
    lane = [memory_stride(x, order[-1], p.layouts) for x in some] if order else []
    return 1 in along and not any(s == 1 for s in lane)
