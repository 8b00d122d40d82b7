"""What a call is given may lie where the program itself reads or writes, as in its own buffers:
what a call would write over before it is read is copied aside first."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Places:
    """Memory that calls write: addresses of its pieces, ascending, and where each ends."""

    begins: tuple[int, ...]
    ends: tuple[int, ...]

    @classmethod
    def of(cls, pieces: Iterable[tuple[int, int]]) -> Places:
        """pieces: addresses and bytes, of none more than once."""
        own = sorted((at, at + size) for at, size in pieces if size)
        return cls(tuple(a for a, _ in own), tuple(b for _, b in own))

    @classmethod
    def of_tensors(cls, tensors: Iterable[Any]) -> Places:
        return cls.of((x.data_ptr(), x.numel() * x.element_size()) for x in tensors)

    def hold(self, at: int) -> bool:
        n = bisect_right(self.begins, at)
        return n > 0 and at < self.ends[n - 1]

    def apart(self, given: Sequence[Any], own: Sequence[int] = ()) -> list[Any]:
        """Arrays and tensors that lie there as copies, but for what lies at its `own` address, if
        these are told; all others as they are."""
        out = []
        for n, x in enumerate(given):
            if isinstance(x, np.ndarray):
                at, whole, copied = x.__array_interface__["data"][0], x.flags.c_contiguous, x.copy
            elif hasattr(x, "data_ptr"):
                at, whole, copied = x.data_ptr(), x.is_contiguous(), x.clone
            else:  # a sequence, which onnxruntime takes
                out.append(x)
                continue
            its_own = bool(own) and own[n] == at and whole
            out.append(copied() if self.hold(at) and not its_own else x)
        return out
