"""What the costs of plans predict for the stages between an original and a result."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from superopt.cost.graph_cost import GraphCosts
from superopt.cost.store import Store
from superopt.ir import graph as ir_graph
from superopt.loading.request import Deadline, Request
from superopt.optimization.step_groups import StepGroup
from superopt.search.partial_replay import StepReplay
from superopt.search.plan_costs import PlanCosts

MAX_PREDICTION_PART = 0.1  # of the budget
KERNELS_ALONE = "kernels alone"
Predicted = TypeVar("Predicted")


def costs_without(
    left_out: frozenset[str], request: Request, costs: GraphCosts, store: Store
) -> PlanCosts:
    """Return predicted costs of plans without these kinds of kernel decisions. Times of kernels
    that were measured are not used: they have another scale."""
    assert request.timers is not None
    planner = request.timers.make_planner(
        threads=request.threads, sizes=costs.sizes, float_class=request.float_class, store=store,
        is_over=lambda: True, left_out=left_out,
    )  # fmt: skip
    planner.store = None
    return PlanCosts(
        costs.sizes, costs.cost_model, costs.is_fused, free_rules=costs.free_rules,
        has_streams=costs.has_streams, planner=planner,
    )  # fmt: skip


def predict_decisions(
    graph: ir_graph.Graph, request: Request, costs: GraphCosts, store: Store, deadline: Deadline
) -> tuple[tuple[str, float], ...]:
    """Return the predicted time of a graph without kernel decisions, and with more and more of
    them, by title; nothing if that takes too long, or if the graph is not compiled."""
    if request.timers is None or not isinstance(costs, PlanCosts):
        return ()
    titles: Mapping[str, str] = request.timers.decisions
    names = list(titles)

    def predict(n: int) -> tuple[str, float]:
        left_out = frozenset(names[n:])
        title = titles[names[n - 1]] if n else KERNELS_ALONE
        return title, costs_without(left_out, request, costs, store).run_cost(graph)

    return _predict_in_time(request, deadline, predict, len(names) + 1)


def predict_groups(
    replay: StepReplay,
    groups: Sequence[StepGroup],
    request: Request,
    costs: GraphCosts,
    store: Store,
    deadline: Deadline,
) -> tuple[float, ...]:
    """Return the predicted time of the graph before the first group of steps, and after each;
    nothing if that takes too long."""
    if not isinstance(costs, PlanCosts):
        return ()
    if request.timers is not None:
        costs = costs_without(frozenset(), request, costs, store)
    every = frozenset(n for g in groups for n in g.numbers)

    def predict(n: int) -> float:
        later = every.difference(*(g.numbers for g in groups[:n]))
        return costs.run_cost(replay.leave_out(later).graph)

    return _predict_in_time(request, deadline, predict, len(groups) + 1)


def _predict_in_time(
    request: Request, deadline: Deadline, predict: Callable[[int], Predicted], count: int
) -> tuple[Predicted, ...]:
    """Return the predictions 0 to `count` - 1; nothing if they take too much of the budget."""
    most = min(MAX_PREDICTION_PART * request.budget, max(deadline.remaining(), 0.0))
    begin = time.monotonic()
    out: list[Predicted] = []
    for n in range(count):
        if request.stop() or (n + 1) / max(n, 1) * (time.monotonic() - begin) > most:
            return ()
        out.append(predict(n))
    return tuple(out)
