"""Real numbers of which casts make infinities and zeros, where the type has no number as large, or
as small."""

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
        out = np.where(np.abs(out) > largest(dtype), np.copysign(np.inf, out), out)
        return np.where(np.abs(out) <= smallest(dtype) / 2, 0 * out, out)


def largest(dtype: DType) -> float:
    """The greatest number of a float type."""
    return float(_limits(dtype).max)


def smallest(dtype: DType) -> float:
    """The least number of a float type that is above 0."""
    return float(_limits(dtype).smallest_subnormal)


def _limits(dtype: DType) -> np.finfo:
    found: np.finfo = ml_dtypes.finfo(to_numpy(dtype))  # type: ignore[no-untyped-call]
    return found
