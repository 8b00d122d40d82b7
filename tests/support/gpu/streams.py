"""A stand-in for CUDA's streams and events."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from superopt.plan.program.streams import (
    StreamOrder,
)


def any_order(order: StreamOrder, rng: np.random.Generator) -> list[int]:
    """The steps as they may end: on each stream in order, and after what they wait for."""
    left = {lane: [n for n, x in enumerate(order.streams) if x == lane] for lane in order.streams}
    out: list[int] = []
    while len(out) < len(order.streams):
        ready = [lane for lane, some in left.items() if some and {*order.waits[some[0]]} <= {*out}]
        out.append(left[int(rng.choice(ready))].pop(0))
    return out


@dataclass
class Cuda:
    """torch.cuda as far as it is used: `log` has which stream each kernel ran on, and what had
    ended when it began."""

    current: Any = None
    log: list[tuple[str, int, frozenset[str]]] = field(default_factory=list)

    def current_stream(self) -> Any:
        return self.current

    @contextmanager
    def stream(self, s: Any) -> Iterator[None]:
        before, self.current = self.current, s
        yield
        self.current = before

    def Event(self) -> Any:
        return Event()


@dataclass
class Event:
    over: frozenset[str] | None = None

    def record(self, s: Any) -> None:
        self.over = s.over


@dataclass
class Stream:
    number: int
    begun: bool = False
    over: frozenset[str] = frozenset()

    def wait_event(self, e: Event) -> None:
        assert e.over is not None
        self.begun = True  # part of what is recorded
        self.over |= e.over
