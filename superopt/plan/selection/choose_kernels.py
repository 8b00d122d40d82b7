"""Choose how each problem of a plan is solved, with transformed constants within their budget.

Where not all fit, they are chosen as of a knapsack: again and again the option that saves the most
estimated time for each byte that it adds (Dantzig, Discrete-variable extremum problems, 1957).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import prod

from superopt.kernels.algorithms.cpu.tiled_convolution import TILE_SIDES
from superopt.kernels.algorithms.digests import problem_digest
from superopt.kernels.algorithms.problem import Choice, Problem
from superopt.kernels.algorithms.space import best_prediction
from superopt.plan.program.plan import Settings
from superopt.plan.selection.symbolic_choice import SymbolicProblem
from superopt.plan.selection.transformed_constants import TransformedConstants
from superopt.te.analysis.bind_sizes import has_symbolic_size
from superopt.te.analysis.walk import reductions
from superopt.te.expr.symbolic_int import example_sizes


@dataclass(frozen=True, slots=True)
class Solution:
    """A problem, its key, and how it is solved. is_shared: the choice is of the tensors of an equal
    problem before, whose kernel computes this one as well."""

    problem: Problem
    key: str
    choice: Choice
    is_shared: bool = False


@dataclass(frozen=True, slots=True)
class Variant:
    """A solution, its estimated time, and by how many bytes its constants are larger."""

    solution: Solution
    time: float
    growth_bytes: int


def choose_kernels(
    s: Settings, problems: Sequence[Problem], transformed: TransformedConstants
) -> list[Solution]:
    """Return the solution of each problem, and add what they need to the constants."""
    known: dict[object, Solution] = {}
    found = []
    for problem in problems:
        about = problem_digest(problem), problem.row_axes, problem.strassen_levels
        if about in known:
            found.append(replace(known[about], problem=problem, is_shared=True))
            continue
        one = solve(s, problem)
        found.append(one)
        if one.choice.root is problem.tensor and not _has_more_kernels(one.choice):
            known[about] = one
    bounded = s.target.bounds_transformed_constants
    some = [n for n, one in enumerate(found) if one.choice.derived_constants]
    # choosing among more options would add guards to a program for symbolic sizes
    if bounded and not any(has_symbolic_size(found[n].problem.tensor) for n in some):
        growth = transformed.total_growth((found[n].key, found[n].choice) for n in some)
        if growth > transformed.bytes_left:
            variants = [_variants(s, found[n], transformed) for n in some]
            for n, one in zip(some, fill_budget(variants, transformed.bytes_left), strict=True):
                found[n] = one
    for n, one in enumerate(found):
        if bounded and not transformed.fits(one.key, one.choice):
            found[n] = solve(s, _without_transforms(one.problem))
        transformed.add(found[n].key, found[n].choice)
    return found


def _has_more_kernels(c: Choice) -> bool:
    return bool(c.derived_constants or c.producers or c.kernels)


def _without_transforms(p: Problem) -> Problem:
    return replace(p, allow_winograd=False, strassen_levels=0)


def _variants(s: Settings, one: Solution, transformed: TransformedConstants) -> list[Variant]:
    """Return the solutions of a problem, the first without transformed constants."""
    p, terms = one.problem, _term_count(one.problem)
    smaller = [replace(p, max_winograd_tile=m) for m in TILE_SIDES if m < p.max_winograd_tile]
    found = [solve(s, x) for x in (_without_transforms(p), *smaller)]
    return [
        Variant(
            x,
            terms * best_prediction(x.problem).relative_time,
            transformed.total_growth([(x.key, x.choice)]),
        )
        for x in (*found, one)
    ]


def fill_budget(variants: Sequence[Sequence[Variant]], bytes_left: int) -> list[Solution]:
    """Return a solution of each problem: from the first variants on, the step that saves the most
    time for each byte is taken, as long as one fits."""
    now = [some[0] for some in variants]
    left = bytes_left - sum(v.growth_bytes for v in now)
    while True:
        steps = [
            ((now[n].time - v.time) / max(v.growth_bytes - now[n].growth_bytes, 1), n, k)
            for n, some in enumerate(variants)
            for k, v in enumerate(some)
            if v.time < now[n].time and v.growth_bytes - now[n].growth_bytes <= left
        ]
        if not steps:
            return [v.solution for v in now]
        _, n, k = max(steps)
        left -= variants[n][k].growth_bytes - now[n].growth_bytes
        now[n] = variants[n][k]


def _term_count(p: Problem) -> float:
    """Return the number of terms of all of a problem's sums."""
    t = p.tensor
    return float(prod(a.size for a in (*t.axes, *(a for r in reductions(t.body) for a in r.axes))))


def solve(s: Settings, problem: Problem) -> Solution:
    """Return the solution of a problem without regard to a budget."""
    if not has_symbolic_size(problem.tensor):
        key = problem_digest(problem)
        return Solution(problem, key, s.target.choose(problem, s.options.get(key)))
    # Strassen computes other tensors, which are made for fixed sizes.
    plain = replace(problem, strassen_levels=0)
    known = SymbolicProblem(plain, example_sizes())
    key = problem_digest(known.at_hints)
    choices = (
        s.target.choose(known.at_hints, option)
        for option in chain((s.options.get(key),), s.target.list_options(known.at_hints))
    )
    found = next(filter(None, map(known.transfer, choices)), None)
    if found is None:
        raise NotImplementedError(f"no kernel of symbolic sizes computes {problem.tensor.type}")
    return Solution(problem, key, found)
