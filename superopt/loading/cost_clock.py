"""The clock that measures costs: by the requested runtime, on this machine."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from superopt import ort
from superopt.cost import tuning_records
from superopt.cost.machine import Machine
from superopt.cost.measured_cost import MeasuredCostModel
from superopt.cost.planner import Planner
from superopt.cost.runtime_plans import RuntimePlans
from superopt.cost.store import Store, Target
from superopt.loading.request import Deadline, Request
from superopt.onnx_io.import_.model import Model
from superopt.report.data.report import Event


def cost_target(request: Request, machine: Machine) -> Target:
    if request.target == "cpu":
        return tuning_records.cpu_target(request.threads)
    if request.target == "cuda":
        assert request.timers is not None
        return tuning_records.gpu_models_target(request.timers.device, request.precision)
    return Target.for_machine(
        machine, "onnxruntime", ort.installed_version() or "none", request.threads
    )


CostClock = MeasuredCostModel | Planner


def measured_clock(
    model: Model,
    request: Request,
    deadline: Deadline,
    store: Store,
    machine: Machine,
    budget_part: float,
    sizes: Mapping[str, int],
) -> CostClock:
    """Return the clock of the model's plans or nodes, for at most this part of the budget. sizes:
    of symbols."""
    end = deadline.start + budget_part * request.budget
    if request.timers is not None:
        planner: Planner = request.timers.make_planner(
            threads=request.threads, sizes=sizes, float_class=request.float_class, store=store,
            is_over=lambda: request.stop() or time.monotonic() > end,
        )  # fmt: skip
        return planner
    return RuntimePlans(
        model.opset, model.source.model.ir_version, request.threads, sizes,
        is_over=lambda: request.stop() or time.monotonic() > end,
    )  # fmt: skip


def node_clock(
    model: Model,
    request: Request,
    deadline: Deadline,
    store: Store,
    machine: Machine,
    budget_part: float,
) -> MeasuredCostModel:
    """Return the clock of the model's nodes and others, for at most this part of the budget."""
    timers = request.timers
    timer: dict[str, Any] = {}
    if timers is not None and timers.time_nodes is not None:
        timer = {"kind": timers.kind, "timer": timers.time_nodes}
    return MeasuredCostModel(
        store,
        cost_target(request, machine),
        model.opset,
        model.source.model.ir_version,
        request.threads,
        deadline=deadline.start + budget_part * request.budget,
        stop=request.stop,
        progress=lambda done, of: request.progress(
            Event("measure", f"{done} of {of} new operators")
        ),
        **timer,
    )
