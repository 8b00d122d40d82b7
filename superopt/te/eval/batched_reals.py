"""Evaluate many inputs at once along a leading batch axis."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from superopt.te.eval.domain import Reals
from superopt.te.expr.dtype import BOOL, DType
from superopt.te.expr.node import Number
from superopt.te.expr.tensor import TensorType


@dataclass(frozen=True, slots=True)
class BatchedReals(Reals):
    """`Reals` for `count` inputs: float and bool arrays have shape (count, *shape). Integer arrays
    have no batch axis, because they may be indices, which are shared."""

    count: int = 1

    def component_shape(self, dtype: DType) -> tuple[int, ...]:
        return (self.count,) if dtype.is_float or dtype is BOOL else ()

    def load(self, array: np.ndarray, type: TensorType) -> np.ndarray:
        assert type.dtype is not None
        out = Reals.load(self, array, type)
        if not self.component_shape(type.dtype):
            return out
        return np.broadcast_to(out, (self.count, *out.shape[out.ndim - len(type.shape or ()) :]))

    def const(self, value: Number, dtype: DType) -> np.ndarray:
        c = Reals.const(self, value, dtype)
        return c.reshape(1) if self.component_shape(dtype) else c
