"""The clock that measures costs: by the requested runtime, on this machine."""

from __future__ import annotations

from typing import Any

from superopt import ort
from superopt.cost import tuned
from superopt.cost.machine import Machine
from superopt.cost.measured import MeasuredClock
from superopt.cost.store import Store, Target
from superopt.onnx_io.import_.model import Model
from superopt.pipeline.request import Deadline, Request
from superopt.report.data import Event


def target(request: Request, machine: Machine) -> Target:
    if request.target == "cpu":
        return tuned.target(request.threads)
    return Target.on(machine, "onnxruntime", ort.available() or "none", request.threads)


def measured(
    model: Model, request: Request, deadline: Deadline, store: Store, machine: Machine, part: float
) -> MeasuredClock:
    """Return the clock of the model's nodes and others, for at most this part of the budget."""
    timers = request.timers
    timer: dict[str, Any] = {} if timers is None else {"kind": timers.kind, "timer": timers.nodes}
    return MeasuredClock(
        store,
        target(request, machine),
        model.opset,
        model.source.model.ir_version,
        request.threads,
        deadline=deadline.begin + part * request.budget,
        stop=request.stop,
        progress=lambda done, of: request.progress(
            Event("measure", f"{done} of {of} new operators")
        ),
        **timer,
    )
