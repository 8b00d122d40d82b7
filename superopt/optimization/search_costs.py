"""The costs by which a search for a target decides."""

from __future__ import annotations

from collections.abc import Mapping

from superopt import ort
from superopt.cost.fusion import is_fused_in_onnxruntime, is_fused_when_compiled
from superopt.cost.graph_cost import GraphCosts, roofline_cost_model
from superopt.cost.measured_cost import MeasuredCostModel
from superopt.loading.cost_clock import CostClock
from superopt.loading.request import Request
from superopt.search.plan_costs import PlanCosts
from superopt.verification.original import Original


def make_costs(request: Request, sizes: Mapping[str, int], clock: CostClock | None) -> GraphCosts:
    """Return the costs of graphs at these sizes: of plans where there is a planner, else the sum
    over operators, measured by the clock, or estimated without one."""
    estimate = roofline_cost_model(request.threads)
    is_compiled = request.target != "onnxruntime"
    fused = is_fused_when_compiled if is_compiled else is_fused_in_onnxruntime
    if clock is None:
        return GraphCosts(sizes, estimate, fused)
    if isinstance(clock, MeasuredCostModel):
        return GraphCosts(sizes, clock, fused)
    return PlanCosts(
        sizes, estimate, fused, free_rules=clock.free_rules,
        has_streams=clock.has_streams, planner=clock,
    )  # fmt: skip


def reason_for_estimates(request: Request, original: Original) -> str:
    """Return why costs are not measured; empty if they are."""
    if request.is_predicted:
        return f"nothing was timed: costs are {request.cost_source}"
    if ort.installed_version() is None:
        return "onnxruntime is not installed: costs are estimates and nothing was timed"
    if request.cost == "roofline":
        return "costs are estimates and nothing was timed, as requested"
    if request.replay is not None:
        return "decisions were replayed: nothing was searched, measured or timed"
    if original.refusal and request.cost != "measured":
        why = original.refusal.replace(str(original.path), original.model.source.label)
        return (
            "costs are estimates and nothing was timed: onnxruntime does not run the original:"
            f" {why}"
        )
    return ""
