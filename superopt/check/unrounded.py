"""Evaluation without rounding: what quantized models compute if quantizers only scale and clip.

Rounding to integers is discontinuous: where a value lies near the middle of two integers, an error
of 1e-7 becomes a whole quantization step, and steps spread through later layers. Without rounding
two models that are equal over the real numbers stay equal to within float64, however deep they are;
a wrong weight or scale shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from superopt.te.eval.domain import Reals, as_blas_layout, timed_matmul
from superopt.te.expr.dtype import F64, DType, to_numpy
from superopt.te.expr.node import Number

FLOAT64 = np.dtype(np.float64)
MAX_UNROUNDED_BITS = 32  # 64-bit integers are sizes and indices


@dataclass(frozen=True, slots=True)
class Unrounded(Reals):
    """Floats, and integers of at most 32 bits, are float64; `round` is the identity, and integers
    do not wrap."""

    float_dtype: DType | None = F64

    def storage_dtype(self, dtype: DType) -> np.dtype:
        if dtype.is_int and dtype.bits <= MAX_UNROUNDED_BITS:
            return FLOAT64
        return Reals.storage_dtype(self, dtype)

    def const(self, value: Number, dtype: DType) -> np.ndarray:
        return Reals.const(self, value, dtype).astype(self.storage_dtype(dtype))

    def apply(
        self, fn: str, args: Sequence[np.ndarray], kinds: Sequence[DType], dtype: DType
    ) -> np.ndarray:
        unrounded = self.storage_dtype(kinds[0]) == FLOAT64
        if fn == "round" and unrounded:
            return args[0]
        if fn == "bitcast" or (fn in ("div", "mod", "fmod", "pow") and kinds[0].is_int):
            raise TypeError(f"{fn} of {kinds[0]} has no meaning without rounding")
        if fn == "cast" and unrounded and dtype.is_int and to_numpy(dtype).itemsize == 8:
            whole: np.ndarray = np.rint(args[0]).astype(self.storage_dtype(dtype))
            return whole
        return Reals.apply(self, fn, args, kinds, dtype)

    def matmul(self, a: np.ndarray, b: np.ndarray, dtype: DType) -> np.ndarray:
        if self.storage_dtype(dtype) != FLOAT64:
            return Reals.matmul(self, a, b, dtype)
        product: np.ndarray = timed_matmul(as_blas_layout(a, FLOAT64), as_blas_layout(b, FLOAT64))
        return product
