"""Real arithmetic in which casts overflow to infinity and underflow to zero."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from superopt.te.eval.domain import Reals
from superopt.te.expr.dtype import F64, DType, to_numpy


@dataclass(frozen=True, slots=True)
class RangeLimitedReals(Reals):
    """Every float type in float64, restricted to its own range by casts."""

    float_dtype: DType | None = F64

    def apply(
        self, fn: str, args: Sequence[np.ndarray], kinds: Sequence[DType], dtype: DType
    ) -> np.ndarray:
        out = Reals.apply(self, fn, args, kinds, dtype)
        if fn != "cast" or not dtype.is_float:
            return out
        out = np.where(np.abs(out) > max_finite(dtype), np.copysign(np.inf, out), out)
        return np.where(np.abs(out) <= min_subnormal(dtype) / 2, 0 * out, out)


def max_finite(dtype: DType) -> float:
    """Return the largest finite number of a float type."""
    return float(_float_limits(dtype).max)


def min_subnormal(dtype: DType) -> float:
    """Return the smallest positive number of a float type."""
    return float(_float_limits(dtype).smallest_subnormal)


def _float_limits(dtype: DType) -> np.finfo:
    found: np.finfo = ml_dtypes.finfo(to_numpy(dtype))  # type: ignore[no-untyped-call]
    return found
