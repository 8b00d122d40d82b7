"""Where a result's speed comes from: groups of steps, kernel decisions, and what was measured."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from superopt.cost.graph_cost import GraphCosts
from superopt.cost.store import Store
from superopt.errors import OutOfTime
from superopt.ir import graph as ir_graph
from superopt.loading.request import Deadline, Request
from superopt.optimization.ablation import AblationResult, measure_ablation
from superopt.optimization.candidate import Candidate
from superopt.optimization.step_groups import StepGroup, group_by_rule
from superopt.search.plan_costs import PlanCosts
from superopt.verification.original import Original

MAX_PREDICTION_PART = 0.1  # of the budget, for plans without kernel decisions
KERNELS_ALONE = "kernels alone"


@dataclass(frozen=True, slots=True)
class Attribution:
    """groups: of the steps. decisions_us: predicted microseconds of the original, compiled without
    kernel decisions, then with each kind of them added, by title; empty if that is not predicted.
    ablation: what was measured; None if that was not asked for, a text if it is not possible."""

    groups: tuple[StepGroup, ...] = ()
    decisions_us: tuple[tuple[str, float], ...] = ()
    ablation: AblationResult | str | None = None


NO_ATTRIBUTION = Attribution()


def attribute_speed(
    original: Original,
    winner: Candidate | None,
    request: Request,
    costs: GraphCosts,
    store: Store,
    deadline: Deadline,
    folder: Path,
) -> Attribution:
    """Return where the speed of the winner, or of the original, comes from. Ablations take up to
    `request.ablation_seconds` beyond the deadline; their models are written to `folder`."""
    free_rules = costs.free_rules
    groups = group_by_rule(winner.variant.steps, free_rules) if winner is not None else ()
    decisions = _predict_decisions(original.model.graph, request, costs, store, deadline)
    ablation: AblationResult | str | None = None
    if request.ablation_seconds and not request.stop():
        try:
            ablation = measure_ablation(
                original, winner, groups, request, costs, folder, request.ablation_seconds
            )
        except (OutOfTime, MemoryError) as e:
            ablation = f"not finished: {' '.join(str(e).split())}"
    return Attribution(groups, decisions, ablation)


def _predict_decisions(
    graph: ir_graph.Graph, request: Request, costs: GraphCosts, store: Store, deadline: Deadline
) -> tuple[tuple[str, float], ...]:
    """Return the predicted time of a graph without kernel decisions, and with more and more of
    them; nothing if that takes too long."""
    if request.timers is None or not isinstance(costs, PlanCosts):
        return ()
    end = time.monotonic() + min(
        MAX_PREDICTION_PART * request.budget, max(deadline.remaining(), 0.0)
    )
    names = list(request.timers.decisions)
    titles: Mapping[str, str] = request.timers.decisions
    out: list[tuple[str, float]] = []
    for n in range(len(names) + 1):
        begin = time.monotonic()
        planner = request.timers.make_planner(
            threads=request.threads, sizes=costs.sizes, float_class=request.float_class,
            store=store, is_over=lambda: True, left_out=frozenset(names[n:]),
        )  # fmt: skip
        planner.store = None  # all kernels are predicted: measured times have another scale
        title = titles[names[n - 1]] if n else KERNELS_ALONE
        plans = PlanCosts(
            costs.sizes, costs.cost_model, costs.is_fused, free_rules=costs.free_rules,
            has_streams=costs.has_streams, planner=planner,
        )  # fmt: skip
        out.append((title, plans.run_cost(graph)))
        if time.monotonic() + (time.monotonic() - begin) > end and n < len(names):
            return ()
    return tuple(out)
