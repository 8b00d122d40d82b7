"""Sizes that come once, as a decoder's do that grow with each word: a model that was compiled for
several already runs in onnxruntime at new ones, until that has taken as long as compiling would.
So both together take at most twice what the better of them takes (ski rental: Karlin, Manasse,
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
    """What makes a model's steps."""

    def elsewhere(self) -> Steps | None:
        """All of it in onnxruntime, for any sizes; None where that is not there."""

    def run(self, steps: Steps, arrays: Sequence[Any]) -> dict[str, Any]:
        """The outputs by name, of the inputs in order."""
        ...


SEVERAL = 16  # sizes for which a model is compiled at once
REMEMBERED = 1 << 14  # sizes


@dataclass(slots=True)
class Rare(Generic[Steps]):
    """made: what compiling took, for each of the first sizes, in seconds; spent: what onnxruntime
    took at others; steps: the whole model there, for any sizes; None: not asked for, or there is
    none."""

    made: list[float] = field(default_factory=list)
    spent: dict[Sizes, float] = field(default_factory=dict)
    steps: Steps | None = None

    def compiled(self, seconds: float) -> None:
        if len(self.made) < SEVERAL:
            self.made.append(seconds)

    def gone(self, sizes: Sizes) -> None:
        """What was compiled for these was given up: they wait again."""
        self.spent.pop(sizes, None)

    def waits(self, sizes: Sizes) -> bool:
        """Is it too early to compile the model for these?"""
        if not sizes or len(self.made) < SEVERAL:
            return False
        return self.spent.get(sizes, 0.0) < sum(self.made) / len(self.made)

    def run(
        self, compiler: Compiler[Steps], sizes: Sizes, given: Sequence[Any]
    ) -> dict[str, Any] | None:
        """The outputs by name; None where onnxruntime is not there, or does not run the model."""
        begin = time.perf_counter()
        try:
            if self.steps is None:
                self.steps = compiler.elsewhere()
                begin = time.perf_counter()
            out = None if self.steps is None else compiler.run(self.steps, given)
        except SuperoptError:  # it may be one that only kernels compute
            out = None
        if out is None:
            self.made.clear()
            return None
        if len(self.spent) >= REMEMBERED:
            self.spent.clear()
        self.spent[sizes] = self.spent.get(sizes, 0.0) + time.perf_counter() - begin
        return out
