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


class FallbackCompiler(Protocol[Steps]):
    """Makes a model's steps."""

    def fallback_variant(self) -> Steps | None:
        """Return the whole model in ONNX Runtime, for any sizes; None if it is not installed."""

    def run(self, steps: Steps, arrays: Sequence[Any]) -> dict[str, Any]:
        """Return the outputs by name, for the inputs in order."""
        ...


EAGER_SIZES = 16  # the first sizes, for which a model is compiled immediately
MAX_REMEMBERED_SIZES = 1 << 14  # sizes


@dataclass(slots=True)
class ShapePolicy(Generic[Steps]):
    """compile_seconds: of each of the first sizes; fallback_seconds: the time in ONNX Runtime, by
    other sizes; fallback: the whole model there, for any sizes; None: not needed yet, or not
    available."""

    compile_seconds: list[float] = field(default_factory=list)
    fallback_seconds: dict[Sizes, float] = field(default_factory=dict)
    fallback: Steps | None = None

    def add_compile_time(self, seconds: float) -> None:
        if len(self.compile_seconds) < EAGER_SIZES:
            self.compile_seconds.append(seconds)

    def reset_fallback_time(self, sizes: Sizes) -> None:
        """The program for these sizes was dropped: start to count again."""
        self.fallback_seconds.pop(sizes, None)

    def is_too_early(self, sizes: Sizes) -> bool:
        """True if it is too early to compile the model for these sizes."""
        if not sizes or len(self.compile_seconds) < EAGER_SIZES:
            return False
        return self.fallback_seconds.get(sizes, 0.0) < sum(self.compile_seconds) / len(
            self.compile_seconds
        )

    def run_fallback(
        self, compiler: FallbackCompiler[Steps], sizes: Sizes, arrays: Sequence[Any]
    ) -> dict[str, Any] | None:
        """Return the outputs by name; None if ONNX Runtime is not installed, or does not run the
        model."""
        begin = time.perf_counter()
        try:
            if self.fallback is None:
                self.fallback = compiler.fallback_variant()
                begin = time.perf_counter()
            out = None if self.fallback is None else compiler.run(self.fallback, arrays)
        except SuperoptError:  # only kernels may support the model
            out = None
        if out is None:
            self.compile_seconds.clear()
            return None
        if len(self.fallback_seconds) >= MAX_REMEMBERED_SIZES:
            self.fallback_seconds.clear()
        self.fallback_seconds[sizes] = (
            self.fallback_seconds.get(sizes, 0.0) + time.perf_counter() - begin
        )
        return out
