"""Calls like the previous one, which need no checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from superopt.compilation.frontend.input_arrays import InputPort

Sizes = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class LastCall:
    """A call whose inputs were all tensors on the device: another one like it needs no checks.
    input_kinds: name, class, element type, shape and GPU of each input."""

    sizes: Sizes
    input_kinds: tuple[tuple[str, Any, Any, Any, int], ...]

    @classmethod
    def from_call(
        cls, sizes: Mapping[str, int], ports: Sequence[InputPort], tensors: Sequence[Any]
    ) -> LastCall:
        kinds = ((p.name, type(x), x.dtype, x.shape, x.get_device())
                 for p, x in zip(ports, tensors, strict=True))  # fmt: skip
        return cls(sorted_sizes(sizes), tuple(kinds))

    def match_inputs(self, feeds: Mapping[str, Any]) -> list[Any] | None:
        """Return the inputs in order if they are like these; else None."""
        if type(feeds) is not dict or len(feeds) != len(self.input_kinds):
            return None
        out = []
        for name, kind, dtype, shape, number in self.input_kinds:
            x: Any = feeds.get(name)
            if type(x) is not kind or x.dtype != dtype or x.shape != shape:
                return None
            if x.get_device() != number:
                return None
            out.append(x)
        return out


def sorted_sizes(sizes: Mapping[str, int]) -> Sizes:
    return tuple(sorted(sizes.items()))
