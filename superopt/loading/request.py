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


@dataclass(frozen=True, slots=True)
class CompiledTimers:
    """Timers of compiled models: of single nodes, and of whole models, interleaved; see
    `node_timing.py`.

    A request holds them, so that the compiler (240 modules, and LLVM) is loaded for the target
    "cpu" alone. kind: of the measurements in the store. make_planner: returns what prices plans;
    see `plan_pricing.py`.
    """

    kind: str
    time_nodes: Timer
    time_models: Callable[..., list[list[float]]]
    make_planner: Callable[..., Any]


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
    timers: CompiledTimers | None = None  # for the target "cpu", unless `untimed`

    @property
    def is_untimed(self) -> bool:
        """True if nothing is measured or timed: estimated costs or a replay were requested."""
        return self.cost == "roofline" or self.replay is not None


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
