"""Calls that are like the one before, of which nothing needs to be asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from superopt.pipeline.arrays import Port

Sizes = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Last:
    """A call whose inputs were all tensors on the device: of another one like it nothing needs to
    be asked. kinds: of each input its name, class, element type, shape and GPU."""

    sizes: Sizes
    kinds: tuple[tuple[str, Any, Any, Any, int], ...]

    @classmethod
    def of(cls, sizes: Mapping[str, int], ports: Sequence[Port], given: Sequence[Any]) -> Last:
        kinds = ((p.name, type(x), x.dtype, x.shape, x.get_device())
                 for p, x in zip(ports, given, strict=True))  # fmt: skip
        return cls(sorted_sizes(sizes), tuple(kinds))

    def again(self, feeds: Mapping[str, Any]) -> list[Any] | None:
        """The inputs in order, where they are like these."""
        if type(feeds) is not dict or len(feeds) != len(self.kinds):
            return None
        out = []
        for name, kind, dtype, shape, number in self.kinds:
            x: Any = feeds.get(name)
            if type(x) is not kind or x.dtype != dtype or x.shape != shape:
                return None
            if x.get_device() != number:
                return None
            out.append(x)
        return out


def sorted_sizes(sizes: Mapping[str, int]) -> Sizes:
    return tuple(sorted(sizes.items()))
