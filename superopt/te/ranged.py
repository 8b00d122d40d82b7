"""Real numbers of which casts make infinities: those that the narrower type has no number for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from superopt.te.domain import Reals
from superopt.te.dtype import F64, DType, to_numpy


@dataclass(frozen=True, slots=True)
class Ranged(Reals):
    """Every float type in float64, in its own range behind a cast."""

    floats: DType | None = F64

    def apply(
        self, fn: str, args: Sequence[np.ndarray], kinds: Sequence[DType], dtype: DType
    ) -> np.ndarray:
        out = Reals.apply(self, fn, args, kinds, dtype)
        if fn != "cast" or not dtype.is_float:
            return out
        return np.where(np.abs(out) > largest(dtype), np.copysign(np.inf, out), out)


def largest(dtype: DType) -> float:
    """The greatest number of a float type."""
    of_type = ml_dtypes.finfo(to_numpy(dtype))  # type: ignore[no-untyped-call]
    return float(of_type.max)
