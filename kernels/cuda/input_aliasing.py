"""Inputs of a call may alias memory that the program reads or writes, such as its own buffers:
those that would be overwritten before they are read are copied first."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class WrittenRanges:
    """Memory that calls write: ascending begin addresses of ranges, and their ends."""

    begins: tuple[int, ...]
    ends: tuple[int, ...]

    @classmethod
    def from_ranges(cls, ranges: Iterable[tuple[int, int]]) -> WrittenRanges:
        """Return the ranges of (address, bytes) pairs, which are disjoint."""
        own = sorted((at, at + size) for at, size in ranges if size)
        return cls(tuple(a for a, _ in own), tuple(b for _, b in own))

    @classmethod
    def from_tensors(cls, tensors: Iterable[Any]) -> WrittenRanges:
        return cls.from_ranges((x.data_ptr(), x.numel() * x.element_size()) for x in tensors)

    def contains(self, address: int) -> bool:
        n = bisect_right(self.begins, address)
        return n > 0 and address < self.ends[n - 1]

    def copy_aliased(self, arrays: Sequence[Any], own_addresses: Sequence[int] = ()) -> list[Any]:
        """Return arrays and tensors within the ranges as copies, except those at their
        `own_addresses`, if given; all others as they are."""
        out = []
        for n, x in enumerate(arrays):
            if isinstance(x, np.ndarray):
                at, whole, copied = x.__array_interface__["data"][0], x.flags.c_contiguous, x.copy
            elif hasattr(x, "data_ptr"):
                at, whole, copied = x.data_ptr(), x.is_contiguous(), x.clone
            else:  # a sequence, which ONNX Runtime takes
                out.append(x)
                continue
            its_own = bool(own_addresses) and own_addresses[n] == at and whole
            out.append(copied() if self.contains(at) and not its_own else x)
        return out
