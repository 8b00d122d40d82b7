"""Formulas of symbolic sizes: what a program for all sizes of a class computes before a run.

A formula is text over the variables s0, s1, ..., so that a cached program needs no expressions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple


def compile_formulas(
    texts: Sequence[str], count: int, shared: Sequence[str] = ()
) -> Callable[..., tuple[Any, ...]]:
    """Return a function of `count` sizes that returns the values of the formulas. shared: those of
    t0, t1, ..., which the others use."""
    given = ", ".join(f"s{n}" for n in range(count))
    lines = [
        f"def values({given}):",
        *(f"    t{n} = {text}" for n, text in enumerate(shared)),
        f"    return {tuple_text(texts)}",
    ]
    defined: dict[str, Any] = {"__builtins__": {}, "max": max, "min": min}
    exec("\n".join(lines), defined)
    return defined["values"]  # type: ignore[no-any-return]


def tuple_text(texts: Sequence[str]) -> str:
    """Return the text of a tuple of formulas."""
    return f"({', '.join(texts)}{',' * bool(texts)})"


class SizedProgram(NamedTuple):
    """What a program needs at given sizes; see SizeFormulas."""

    memory_bytes: int
    workspace_bytes: int
    words: tuple[int, ...]
    output_shapes: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class SizeFormulas:
    """The formulas of a program. names: of the sizes. guards: conditions under which it is right.
    words: values that it reads. memory_bytes, workspace_bytes: what it needs. output_shapes: those
    of its outputs. shared: those of t0, t1, ..., which all but guards use."""

    names: tuple[str, ...]
    guards: tuple[str, ...]
    words: tuple[str, ...]
    memory_bytes: str
    workspace_bytes: str
    output_shapes: tuple[tuple[str, ...], ...]
    shared: tuple[str, ...] = ()

    @cached_property
    def _name_set(self) -> frozenset[str]:
        return frozenset(self.names)

    @cached_property
    def _admits(self) -> Callable[..., tuple[bool]]:
        return compile_formulas([" and ".join(self.guards) or "True"], len(self.names))

    @cached_property
    def _find(self) -> Callable[[Mapping[str, int]], SizedProgram | None]:
        """Return what returns the values at sizes, None if a guard fails: in one piece, as calls at
        new sizes wait for it. It raises KeyError for other names."""
        shapes = tuple_text([*map(tuple_text, self.output_shapes)])
        lines = [
            "def find(sizes):",
            *(f"    s{n} = sizes[{name!r}]" for n, name in enumerate(self.names)),
            f"    if not ({' and '.join(self.guards) or 'True'}): return None",
            *(f"    t{n} = {text}" for n, text in enumerate(self.shared)),
            f"    return new(made, ({self.memory_bytes}, {self.workspace_bytes}, "
            f"{tuple_text(self.words)}, {shapes}))",
        ]
        defined: dict[str, Any] = {
            "__builtins__": {}, "max": max, "min": min, "made": SizedProgram, "new": tuple.__new__,
        }  # fmt: skip
        exec("\n".join(lines), defined)
        return defined["find"]  # type: ignore[no-any-return]

    @cached_property
    def _values(self) -> Callable[..., tuple[Any, ...]]:
        shapes = tuple_text([*map(tuple_text, self.output_shapes)])
        texts = (self.memory_bytes, self.workspace_bytes, tuple_text(self.words), shapes)
        return compile_formulas(texts, len(self.names), self.shared)

    def admits(self, sizes: Mapping[str, int]) -> bool:
        """Return whether the program is right for these sizes. The guards say which may be 0."""
        if sizes.keys() != self._name_set:
            return False
        return self._admits_values(self._ordered_values(sizes))

    def at_sizes(self, sizes: Mapping[str, int]) -> SizedProgram:
        """Return the values at these sizes."""
        return SizedProgram(*self._values(*self._ordered_values(sizes)))

    def find(self, sizes: Mapping[str, int]) -> SizedProgram | None:
        """Return the values at these sizes if the program is right for them."""
        if len(sizes) != len(self.names):
            return None
        try:
            return self._find(sizes)
        except (KeyError, ZeroDivisionError):  # other names; see `_admits_values`
            return None

    def _admits_values(self, values: Sequence[int]) -> bool:
        try:
            return bool(self._admits(*values)[0])
        except ZeroDivisionError:  # in a guard, where an earlier one fails or is not tested yet
            return False

    def _ordered_values(self, sizes: Mapping[str, int]) -> list[int]:
        return [sizes[name] for name in self.names]

    def as_json(self) -> dict[str, Any]:
        """Return the formulas as JSON data; see `from_json`."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SizeFormulas:
        """Return the formulas that `as_json` gave."""
        lists = {k: tuple(v) for k, v in data.items() if not isinstance(v, str)}
        shapes = tuple(map(tuple, data["output_shapes"]))
        return cls(**{**data, **lists, "output_shapes": shapes})
