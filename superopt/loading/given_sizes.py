"""Checks of the symbolic sizes that a user gives, by name: `shapes={"batch": 8}`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import index
from shlex import quote
from typing import Any

from superopt.errors import UsageError

MAX_SIZE = 2**63 - 1  # of an int64, which kernels and ONNX use


def as_size_mapping(given: Any, option: str = "shapes") -> dict[str, Any]:
    """Return sizes by name; none for None. Raises UsageError for another type, and for names that
    are not texts. option: the argument that has them."""
    if given is None:
        return {}
    example = f'pass a dict of integers by name: {option}={{"batch": 8}}'
    if not isinstance(given, Mapping):
        raise UsageError(
            f"{option} is {given!r}, of type {type(given).__name__}",
            "sizes are given by name",
            example,
        )
    for name in given:
        if not isinstance(name, str):
            raise UsageError(f"{option} has the name {name!r}", "a name is a text", example)
    return dict(given)


def as_integer(what: str, value: Any, *, least: int, example: str = "") -> int:
    """Return an integer from `least` to MAX_SIZE. Raises UsageError for another value. what: the
    name of the value, example: how to pass one, for the message."""
    try:
        n = None if isinstance(value, bool) else index(value)
    except TypeError:
        n = None
    if n is not None and least <= n <= MAX_SIZE:
        return n
    limit = f"at most {MAX_SIZE}" if n is not None and n > MAX_SIZE else f"at least {least}"
    raise UsageError(
        f"{what} is {value!r}",
        f"it must be an integer of {limit}",
        f"pass another value, such as {example or least}",
    )


@dataclass(frozen=True, slots=True)
class SizeNames:
    """What a user may give. names: of the symbolic sizes. option: the argument that has them.
    least: the least value. inputs: the types of the model's inputs by name, for messages."""

    names: Sequence[str]
    option: str = "shapes"
    least: int = 0
    inputs: Mapping[str, str] = field(default_factory=dict)

    def check_value(self, name: str, value: Any) -> int:
        """Return the value of a size. Raises UsageError if it is not an integer in the limits."""
        example = self._example({name: max(self.least, 1)})
        return as_integer(f"the size {name}", value, least=self.least, example=example)

    def unknown_error(self, name: str, value: Any) -> UsageError:
        """Return the error for a name that is not a size's."""
        known = ", ".join(sorted(self.names))
        same = [n for n in self.names if n.casefold() == name.casefold()]
        if not known:
            todo = f"leave {self.option} out"
        elif same:
            todo = f"the name is {same[0]}: {self._example({same[0]: value})}"
        elif name in self.inputs:
            todo = f"{name} is an input, {self.inputs[name]}: pass the sizes of its axes"
        else:
            todo = "use one of these names"
        return UsageError(
            f"{self.option} has {name} = {value!r}, and the model has no symbolic size {name}",
            f"its symbolic sizes are {known}" if known else "all its sizes are fixed",
            todo,
        )

    def check_some(self, given: Any) -> dict[str, int]:
        """Return values of some sizes. Raises UsageError for others."""
        sizes = as_size_mapping(given, self.option)
        for name, value in sizes.items():
            if name not in self.names:
                raise self.unknown_error(name, value)
        return {name: self.check_value(name, n) for name, n in sizes.items()}

    def check_all(self, given: Any) -> dict[str, int]:
        """Return the values of all sizes. Raises UsageError for others, and if some are missing."""
        out = self.check_some(given)
        if missing := sorted({*self.names} - out.keys()):
            raise UsageError(
                f"{self.option} has no value for {', '.join(missing)}",
                f"the model's symbolic sizes are {', '.join(sorted(self.names))}",
                f"pass each of them: {self._example({**out, **dict.fromkeys(missing, 1)})}",
            )
        return out

    def _example(self, sizes: Mapping[str, Any]) -> str:
        text = f"{self.option}={sizes!r}"
        options = ",".join(f"{name}={n}" for name, n in sizes.items())
        return f"{text}, or --shape {quote(options)}" if self.option == "shapes" else text
