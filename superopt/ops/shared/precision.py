"""Accumulation precision: sums of products of 16-bit floats are computed in float32, as runtimes
do.

The operands are converted as tensors and not inside the sum, so that a contraction of 16-bit floats
has the same form as any other.
"""

from __future__ import annotations

from superopt.ops.shared.scalars import accumulation_dtype
from superopt.te.expr.dtype import F64, DType
from superopt.te.expr.tensor import Tensor, cast, compute

NARROWED = "narrow"  # the name of tensors that are rounded to the type of a result


def widen_tensor(x: Tensor) -> Tensor:
    """Convert `x` to accumulation precision."""
    kind = accumulation_dtype(x.dtype)
    return x if kind == x.dtype else compute(x.shape, lambda *i: cast(x[i], kind), name="wide")


def to_float64(x: Tensor) -> Tensor:
    """Convert `x` to float64."""
    return x if x.dtype == F64 else compute(x.shape, lambda *i: cast(x[i], F64), name="precise")


def narrow_tensor(x: Tensor, dtype: DType) -> Tensor:
    """Convert `x` back to `dtype`."""
    return x if x.dtype == dtype else compute(x.shape, lambda *i: cast(x[i], dtype), name=NARROWED)
