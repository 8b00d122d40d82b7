"""What a caller asks of `optimize`, and the time that is left for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from superopt.cost.measured import Timer
from superopt.report.data import Event
from superopt.rules.lang.rule import Rule


@dataclass(frozen=True, slots=True)
class CompiledTimers:
    """How long compiled models take: of one node each, and whole ones in turns; see `timed.py`.

    A request holds them, so that the compiler (240 modules, and LLVM) is loaded for the target
    "cpu" alone. kind: of what is in the store.
    """

    kind: str
    nodes: Timer
    models: Callable[..., list[list[float]]]


@dataclass(frozen=True, slots=True)
class Request:
    """What the caller asked for; see `superopt.api.optimize`."""

    budget: float = 60.0
    rules: tuple[Rule, ...] = ()
    untried: frozenset[str] = frozenset()  # rules that no test has tried: the user's own
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
    mutants: bool = False
    pairs: Mapping[str, Rule] = field(default_factory=dict)  # of which rules were made
    timers: CompiledTimers | None = None  # for the target "cpu", unless `untimed`

    @property
    def untimed(self) -> bool:
        """Is nothing to be measured or timed: were estimates or a log of decisions asked for?"""
        return self.cost == "roofline" or self.replay is not None


@dataclass(frozen=True, slots=True)
class Deadline:
    """The budget: when it began (time.monotonic), its seconds; `stop`: has the caller enough?"""

    begin: float
    seconds: float
    stop: Callable[[], bool]

    @staticmethod
    def of(request: Request, spent: float = 0.0) -> Deadline:
        """The deadline of a call that began `spent` seconds ago."""
        return Deadline(time.monotonic() - spent, request.budget, request.stop)

    def spent(self) -> float:
        """Seconds since the begin."""
        return time.monotonic() - self.begin

    def left(self) -> float:
        """Seconds left, 0 when the caller has enough; negative when they are overdrawn."""
        return 0.0 if self.stop() else self.begin + self.seconds - time.monotonic()

    def over(self) -> bool:
        """Is there no time left?"""
        return self.left() <= 0
