"""The memory of a program: one range of offsets, of which each part is an allocation."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Generic, TypeVar

Part = TypeVar("Part")  # an allocation


@dataclass(frozen=True, slots=True)
class Arena(Generic[Part]):
    """begins: the ascending offsets at which the parts begin; a part of no bytes comes before the
    one that begins there, too."""

    begins: tuple[int, ...]
    parts: tuple[Part, ...]

    def find(self, offset: int) -> tuple[Part, int]:
        """Return the part at an offset, and the offset within it."""
        n = bisect_right(self.begins, offset) - 1
        return self.parts[n], offset - self.begins[n]
