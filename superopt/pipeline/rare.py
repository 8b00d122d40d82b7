"""The policy for sizes that occur once, as those of a decoder that grow with each token: a model
that was compiled for several sizes runs in ONNX Runtime at new ones until that has taken as long as
compiling would. The total is at most twice that of the better choice (ski rental: Karlin, Manasse,
Rudolph and Sleator, Competitive snoopy caching, 1988)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from superopt.errors import SuperoptError

Sizes = tuple[tuple[str, int], ...]
Steps = TypeVar("Steps")


class Compiler(Protocol[Steps]):
    """Makes a model's steps."""

    def elsewhere(self) -> Steps | None:
        """Return the whole model in ONNX Runtime, for any sizes; None if it is not installed."""

    def run(self, steps: Steps, arrays: Sequence[Any]) -> dict[str, Any]:
        """Return the outputs by name, for the inputs in order."""
        ...


SEVERAL = 16  # the first sizes, for which a model is compiled immediately
REMEMBERED = 1 << 14  # sizes


@dataclass(slots=True)
class Rare(Generic[Steps]):
    """compile_seconds: of each of the first sizes; fallback_seconds: the time in ONNX Runtime, by
    other sizes; fallback: the whole model there, for any sizes; None: not needed yet, or not
    available."""

    made: list[float] = field(default_factory=list)
    spent: dict[Sizes, float] = field(default_factory=dict)
    steps: Steps | None = None

    def compiled(self, seconds: float) -> None:
        if len(self.made) < SEVERAL:
            self.made.append(seconds)

    def gone(self, sizes: Sizes) -> None:
        """The program for these sizes was dropped: start to count again."""
        self.spent.pop(sizes, None)

    def waits(self, sizes: Sizes) -> bool:
        """True if it is too early to compile the model for these sizes."""
        if not sizes or len(self.made) < SEVERAL:
            return False
        return self.spent.get(sizes, 0.0) < sum(self.made) / len(self.made)

    def run(
        self, compiler: Compiler[Steps], sizes: Sizes, given: Sequence[Any]
    ) -> dict[str, Any] | None:
        """Return the outputs by name; None if ONNX Runtime is not installed, or does not run the
        model."""
        begin = time.perf_counter()
        try:
            if self.steps is None:
                self.steps = compiler.elsewhere()
                begin = time.perf_counter()
            out = None if self.steps is None else compiler.run(self.steps, given)
        except SuperoptError:  # only kernels may support the model
            out = None
        if out is None:
            self.made.clear()
            return None
        if len(self.spent) >= REMEMBERED:
            self.spent.clear()
        self.spent[sizes] = self.spent.get(sizes, 0.0) + time.perf_counter() - begin
        return out
