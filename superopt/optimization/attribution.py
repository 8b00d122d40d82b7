"""Where a result's speed comes from: groups of steps, kernel decisions, and what was measured."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from superopt.cost.graph_cost import GraphCosts
from superopt.cost.store import Store
from superopt.errors import OutOfTime
from superopt.loading.request import Deadline, Request
from superopt.optimization.ablation import AblationResult, measure_ablation
from superopt.optimization.candidate import Candidate
from superopt.optimization.predicted_stages import predict_decisions, predict_groups
from superopt.optimization.step_groups import StepGroup, group_by_rule
from superopt.search.partial_replay import NotReplayable, StepReplay
from superopt.verification.original import Original


@dataclass(frozen=True, slots=True)
class Attribution:
    """groups: of the steps. decisions_us: predicted microseconds of the original, compiled without
    kernel decisions, then with each kind of them added, by title. groups_us: predicted before the
    first group of steps, and after each. Both are empty if they are not predicted. ablation: what
    was measured; None if that was not asked for, a text if it is not possible."""

    groups: tuple[StepGroup, ...] = ()
    decisions_us: tuple[tuple[str, float], ...] = ()
    groups_us: tuple[float, ...] = ()
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
    groups: tuple[StepGroup, ...] = ()
    replay: StepReplay | None = None
    ablation: AblationResult | str | None = None
    decisions_us: tuple[tuple[str, float], ...] = ()
    groups_us: tuple[float, ...] = ()
    try:
        if winner is not None:
            steps = winner.variant.steps
            groups = group_by_rule(steps, costs.free_rules)
            replay = StepReplay(steps, {r.name: r for r in request.rules})
            groups_us = predict_groups(replay, groups, request, costs, store, deadline)
        decisions_us = predict_decisions(original.model.graph, request, costs, store, deadline)
        if request.ablation_seconds and not request.stop():
            ablation = measure_ablation(
                original, winner, replay, groups, request, costs, store, folder
            )
    except (OutOfTime, MemoryError) as e:
        ablation = f"not finished: {' '.join(str(e).split())}"
    except NotReplayable as e:
        ablation = f"the steps cannot be repeated: {e}"
    return Attribution(groups, decisions_us, groups_us, ablation)
