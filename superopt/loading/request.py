"""The arguments of `optimize`, and its remaining time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from superopt.cost.measured_cost import Timer
from superopt.report.data.report import Event
from superopt.rules.lang.rule import Rule

PREDICTED_GPU = "NVIDIA H100"  # whose model predicts costs without a GPU
NOT_HERE = "not measured here"


@dataclass(frozen=True, slots=True)
class CompiledTimers:
    """Timers of compiled models: of whole models and of single nodes; see `node_timing.py` and
    `graph_timing.py`.

    A request holds them, so that the compiler (240 modules, and LLVM) is loaded only for the
    targets that need it. kind: of the measurements in the store. make_clock: compiles a model and
    returns a function that returns the microseconds of a run. make_planner: returns what prices
    plans. decisions: kinds of kernel decisions that can be left out of both. is_predicted: nothing
    can be measured here; costs are predicted. device: the name of the GPU.
    """

    kind: str
    make_clock: Callable[..., Callable[[], float]]
    make_planner: Callable[..., Any]
    decisions: Mapping[str, str]
    time_nodes: Timer | None = None
    is_predicted: bool = False
    device: str = ""


@dataclass(frozen=True, slots=True)
class Request:
    """The arguments of `superopt.api.functions.optimize`."""

    budget: float = 60.0
    rules: tuple[Rule, ...] = ()
    untried_rules: frozenset[str] = frozenset()  # the user's own rules, which no test has tried
    shapes: Mapping[str, int] = field(default_factory=dict)
    inputs: Mapping[str, np.ndarray] | None = None
    threads: int = 1
    seed: int = 0
    alpha: float = 1.05
    progress: Callable[[Event], None] = lambda event: None
    stop: Callable[[], bool] = lambda: False
    replay: str | None = None
    store: Path | None = None
    cost: str = "auto"
    tier: str = "A"
    float_class: str = "E2"
    target: str = "onnxruntime"
    use_mutants: bool = False
    # partial equalities that rules were derived from
    partial_pairs: Mapping[str, Rule] = field(default_factory=dict)
    timers: CompiledTimers | None = None  # for the targets "cpu" and "cuda"
    precision: str = "fp32"  # for the target "cuda"
    exact_integers: bool = False  # see OrtSession; not in timed sessions
    runtime_level: str = "all"  # of ONNX Runtime's graph optimizations, in checks
    ablation_seconds: float = 0.0  # beyond the budget, to time the result without each part

    @property
    def is_untimed(self) -> bool:
        """True if nothing is measured or timed: estimated costs or a replay were requested, or
        nothing can be measured here."""
        return self.cost == "roofline" or self.replay is not None or self.is_predicted

    @property
    def cost_source(self) -> str:
        """Return where costs come from if they are of plans for a GPU; else an empty text."""
        if self.target != "cuda":
            return ""
        if self.is_predicted:
            return (
                f"predicted for the kernels of an {PREDICTED_GPU} in {self.precision}: {NOT_HERE}"
            )
        assert self.timers is not None
        return f"of kernels measured on an {self.timers.device} in {self.precision}"

    @property
    def is_predicted(self) -> bool:
        """True if costs are those that a model of another machine predicts."""
        return self.timers is not None and self.timers.is_predicted


@dataclass(frozen=True, slots=True)
class Deadline:
    """The budget: its start (time.monotonic) and seconds; `stop`: True once the caller wants to
    stop."""

    start: float
    seconds: float
    stop: Callable[[], bool]

    @staticmethod
    def for_request(request: Request, elapsed: float = 0.0) -> Deadline:
        """Return the deadline of a call that began `elapsed` seconds ago."""
        return Deadline(time.monotonic() - elapsed, request.budget, request.stop)

    def elapsed(self) -> float:
        """Return the seconds since the start."""
        return time.monotonic() - self.start

    def remaining(self) -> float:
        """Return the remaining seconds: 0 if the caller wants to stop, negative after the
        deadline."""
        return 0.0 if self.stop() else self.start + self.seconds - time.monotonic()

    def is_over(self) -> bool:
        """True if no time remains."""
        return self.remaining() <= 0
