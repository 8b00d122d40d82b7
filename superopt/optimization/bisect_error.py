"""Which step of a rewritten model adds most to its error: bisection of the search's steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path

from superopt.check.numeric_check import PlaceResult
from superopt.ir import graph as ir_graph
from superopt.ir.substitute import ReplacementCycle
from superopt.loading.request import Deadline
from superopt.loading.value_names import ValueNames
from superopt.optimization.bisect_steps import runtime_comparison
from superopt.optimization.candidate import Candidate
from superopt.report.data.report import WorstStep
from superopt.search.cost_delta import apply_together
from superopt.search.move import Step
from superopt.verification.original import Original

MAX_OVERRUN_PART = 0.02  # of the budget; the search may exceed the budget by it
ErrorOf = Callable[[ir_graph.Graph], float | None]


def find_worst_step(
    original: Original, winner: Candidate, folder: Path, threads: int, deadline: Deadline
) -> WorstStep | str:
    """Return the step that adds most to the error of the output whose error grew most, or why there
    is none. Models are written to `folder`."""
    if not original.is_runnable:
        return "onnxruntime does not run the model"
    result = largest_added_error(winner.check.results)
    if result is None:
        return "no floating-point output was compared"
    compared = result.compared
    if compared.max_error <= compared.original_max:
        return "no output has a larger error than the original's"
    (n,) = (k for k, s in enumerate(original.sets) if s.feed.kind == result.kind)
    ref = original.region_reference(n)
    assert not isinstance(ref, str)  # the set was compared
    judge = runtime_comparison(original, ref, folder, threads)
    end = time.monotonic() + max(deadline.remaining(), MAX_OVERRUN_PART * deadline.seconds)
    slowest = 0.0

    def error_of(graph: ir_graph.Graph) -> float | None:
        nonlocal slowest
        begin = time.monotonic()
        errors = [r.compared.max_error for r in judge(graph) if r.place == result.place]
        slowest = max(slowest, time.monotonic() - begin)
        return errors[0] if errors else None

    def over() -> bool:
        return deadline.stop() or time.monotonic() + slowest > end

    steps = winner.variant.steps
    ends = (compared.original_max, compared.max_error)
    first, last, before, after = bisect_error(steps, ends, error_of, over)
    names = ValueNames(original.model.names)
    some = steps[first - 1 : last]
    return WorstStep(
        first,
        last,
        len(steps),
        tuple(dict.fromkeys(s.rule for s in some)),
        tuple(dict.fromkeys(names[v] for s in some for v in s.change)),
        result.place,
        result.kind,
        before,
        after,
    )


def largest_added_error(results: Sequence[PlaceResult]) -> PlaceResult | None:
    """Return the result whose largest error grew most, relative to its tolerance."""

    def added(r: PlaceResult) -> float:
        return (r.compared.max_error - r.compared.original_max) / r.compared.atol

    return max((r for r in results if r.compared.atol > 0), key=added, default=None)


def bisect_error(
    steps: Sequence[Step],
    end_errors: tuple[float, float],
    error_of: ErrorOf,
    is_over: Callable[[], bool],
) -> tuple[int, int, float, float]:
    """Return the numbers (from 1) of the first and last of the steps that add most, and the errors
    before and after them.

    end_errors: without and with all steps. The search continues in the half across which the error
    grows more, so that a step is found in a few runs; where errors cancel, another step may add
    more. It stops early if a graph does not run or time is over.
    """
    low, high = 0, len(steps)
    before, after = end_errors
    while high - low > 1 and not is_over():
        middle = (low + high) // 2
        graph = _graph_after(steps, middle)
        error = None if graph is None else error_of(graph)
        if error is None:
            break
        if after - error > error - before:
            low, before = middle, error
        else:
            high, after = middle, error
    return low + 1, high, before, after


def _graph_after(steps: Sequence[Step], count: int) -> ir_graph.Graph | None:
    """Return the graph after the first `count` steps; None if a part of a round cannot be applied
    without the rest."""
    done = 0
    for _, group in groupby(steps, key=lambda s: id(s.before)):
        some = list(group)
        if done + len(some) >= count:
            if done + len(some) == count:
                return some[-1].after
            try:
                return apply_together(some[0].before, [s.change for s in some[: count - done]])
            except ReplacementCycle:
                return None
        done += len(some)
    raise AssertionError(f"step {count} of {len(steps)}")
