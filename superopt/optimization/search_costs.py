"""The costs by which a search for a target decides."""

from __future__ import annotations

from collections.abc import Mapping

from superopt.cost.fusion import is_fused_in_onnxruntime, is_fused_when_compiled
from superopt.cost.graph_cost import GraphCosts, roofline_cost_model
from superopt.cost.measured_cost import MeasuredCostModel
from superopt.loading.cost_clock import CostClock
from superopt.loading.request import Request
from superopt.search.plan_costs import PlanCosts


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
        merges_first=request.target == "cuda", planner=clock,
    )  # fmt: skip
