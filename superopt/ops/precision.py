"""Sums of products in a precision that holds them: float32 for the 16-bit floats, as runtimes do.

The operands are widened as tensors and not inside the sum, so that a contraction of 16-bit floats
looks like any other.
"""

from __future__ import annotations

from superopt.ops.scalar import wide
from superopt.te.dtype import F64, DType
from superopt.te.expr import Tensor, cast, compute


def wider(x: Tensor) -> Tensor:
    """`x` in the precision of sums."""
    kind = wide(x.dtype)
    return x if kind == x.dtype else compute(x.shape, lambda *i: cast(x[i], kind), name="wide")


def precise(x: Tensor) -> Tensor:
    """`x` in float64."""
    return x if x.dtype == F64 else compute(x.shape, lambda *i: cast(x[i], F64), name="precise")


def narrowed(x: Tensor, dtype: DType) -> Tensor:
    """`x` as `dtype` again."""
    return x if x.dtype == dtype else compute(x.shape, lambda *i: cast(x[i], dtype), name="narrow")
