"""Formulas of symbolic sizes: what a program for all sizes of a class computes before a run.

A formula is text over the variables s0, s1, ..., so that a cached program needs no expressions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any


def compile_formulas(texts: Sequence[str], count: int) -> Callable[..., tuple[int, ...]]:
    """Return a function of `count` sizes that returns the values of the formulas."""
    given = ", ".join(f"s{n}" for n in range(count))
    source = f"lambda {given}: ({', '.join(texts)}{',' * bool(texts)})"
    return eval(source, {"__builtins__": {}, "max": max, "min": min})  # type: ignore[no-any-return]


@dataclass(frozen=True)
class SizeFormulas:
    """The formulas of a program. names: of the sizes. guards: conditions under which it is right.
    words: values that it reads. memory_bytes, workspace_bytes: what it needs. output_shapes: those
    of its outputs."""

    names: tuple[str, ...]
    guards: tuple[str, ...]
    words: tuple[str, ...]
    memory_bytes: str
    workspace_bytes: str
    output_shapes: tuple[tuple[str, ...], ...]

    @cached_property
    def _admits(self) -> Callable[..., tuple[int, ...]]:
        return compile_formulas([" and ".join(self.guards) or "True"], len(self.names))

    @cached_property
    def _values(self) -> Callable[..., tuple[int, ...]]:
        needs = (self.memory_bytes, self.workspace_bytes)
        shapes = [f"({', '.join(s)}{',' * bool(s)})" for s in self.output_shapes]
        return compile_formulas([*needs, *self.words, *shapes], len(self.names))

    def admits(self, sizes: Mapping[str, int]) -> bool:
        """Return whether the program is right for these sizes. The guards say which may be 0."""
        if sizes.keys() != {*self.names}:
            return False
        try:
            return bool(self._admits(*self._ordered_values(sizes))[0])
        except ZeroDivisionError:  # in a guard, where an earlier one fails or is not tested yet
            return False

    def at_sizes(self, sizes: Mapping[str, int]) -> SizedProgram:
        """Return the values at these sizes."""
        memory, workspace, *rest = self._values(*self._ordered_values(sizes))
        count = len(self.words)
        return SizedProgram(memory, workspace, tuple(rest[:count]), tuple(rest[count:]))  # type: ignore[arg-type]

    def _ordered_values(self, sizes: Mapping[str, int]) -> list[int]:
        return [sizes[name] for name in self.names]

    def as_json(self) -> dict[str, Any]:
        """Return the formulas as JSON data; see `from_json`."""
        return {
            "names": self.names, "guards": self.guards, "words": self.words,
            "memory_bytes": self.memory_bytes, "workspace_bytes": self.workspace_bytes,
            "output_shapes": self.output_shapes,
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SizeFormulas:
        """Return the formulas that `as_json` gave."""
        shapes = tuple(map(tuple, data["output_shapes"]))
        names, guards, words = (tuple(data[key]) for key in ("names", "guards", "words"))
        return cls(names, guards, words, data["memory_bytes"], data["workspace_bytes"], shapes)


@dataclass(frozen=True, slots=True)
class SizedProgram:
    """What a program needs at given sizes; see SizeFormulas."""

    memory_bytes: int
    workspace_bytes: int
    words: tuple[int, ...]
    output_shapes: tuple[tuple[int, ...], ...]
