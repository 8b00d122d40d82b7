"""Tensors in exact rational arithmetic, and float32 sums in orders of choice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from superopt.te.eval.domain import Reals
from superopt.te.expr.dtype import BOOL, DType
from superopt.te.expr.node import Number
from superopt.te.expr.tensor import TensorType

_FRACTIONS = np.frompyfunc(Fraction, 1, 1)
_ROUND = np.frompyfunc(round, 1, 1)


@dataclass(frozen=True, slots=True)
class ExactRationals(Reals):
    """Floats are fractions, and nothing rounds but QuantizeLinear and Round."""

    def storage_dtype(self, dtype: DType) -> np.dtype:
        return np.dtype(object) if dtype.is_float else Reals().storage_dtype(dtype)

    def load(self, array: np.ndarray, type: TensorType) -> np.ndarray:
        assert type.dtype is not None
        return _exact(array) if type.dtype.is_float else Reals().load(array, type)

    def const(self, value: Number, dtype: DType) -> np.ndarray:
        if dtype.is_float:
            return np.asarray(Fraction(value), object)
        return Reals().const(value, dtype)

    def apply(
        self, fn: str, args: Sequence[np.ndarray], kinds: Sequence[DType], dtype: DType
    ) -> np.ndarray:
        if fn == "cast" and dtype.is_float:
            return _exact(args[0])
        if fn == "cast" and kinds[0].is_float and dtype != BOOL:
            return np.asarray(args[0]).astype(np.int64).astype(Reals().storage_dtype(dtype))
        if fn == "round" and dtype.is_float:
            return _exact(np.asarray(_ROUND(args[0]), object))
        if not kinds[0].is_float and fn != "select":
            return Reals().apply(fn, args, kinds, dtype)
        match fn:
            case "add":
                out = args[0] + args[1]
            case "sub":
                out = args[0] - args[1]
            case "mul":
                out = args[0] * args[1]
            case "div":
                out = args[0] / args[1]
            case "max" | "min":
                less = np.asarray(args[0] < args[1], bool)
                first = less if fn == "min" else ~less
                out = np.where(first, args[0], args[1])
            case "lt" | "le" | "eq":
                a, b = args
                out = a < b if fn == "lt" else a <= b if fn == "le" else a == b
                return np.asarray(out, bool)
            case "select":
                return np.where(args[0].astype(bool), args[1], args[2])
            case _:
                raise ValueError(f"no exact value of {fn}")
        return np.asarray(out, object)


def _exact(array: np.ndarray) -> np.ndarray:
    x = np.asarray(array)
    if x.dtype == object:
        return x
    if x.dtype.kind in "iub":
        return np.asarray(_FRACTIONS(x.astype(object)), object).reshape(x.shape)
    return np.asarray(_FRACTIONS(x.astype(np.float64).astype(object)), object).reshape(x.shape)


@dataclass(frozen=True, slots=True)
class OrderedFloat32(Reals):
    """float32, whose sums are added one term after the other. order: "first", "last" or a seed of
    a random one; fused: products are not rounded before they are added."""

    order: str | int = "first"
    fused: bool = False

    def matmul(self, a: np.ndarray, b: np.ndarray, dtype: DType) -> np.ndarray:
        if a.dtype != np.float32:
            return Reals().matmul(a, b, dtype)
        total = np.zeros((*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2],
                          b.shape[-1]), np.float32)  # fmt: skip
        for k in self.places(a.shape[-1]):
            x, y = a[..., :, k : k + 1], b[..., k : k + 1, :]
            if self.fused:
                total = (total.astype(np.float64) + x.astype(np.float64) * y).astype(np.float32)
            else:
                total = total + x * y
        return total

    def reduce(self, fn: str, x: np.ndarray, axes: tuple[int, ...], dtype: DType) -> np.ndarray:
        if fn != "sum" or x.dtype != np.float32:
            return Reals().reduce(fn, x, axes, dtype)
        ends = [a % x.ndim for a in axes]
        flat = np.moveaxis(x, ends, range(len(ends)))
        flat = flat.reshape(-1, *flat.shape[len(ends) :])
        total = np.zeros(flat.shape[1:], np.float32)
        for k in self.places(len(flat)):
            total = total + flat[k]
        return np.expand_dims(total, tuple(sorted(ends)))

    def places(self, n: int) -> list[int]:
        match self.order:
            case "first":
                return [*range(n)]
            case "last":
                return [*range(n)][::-1]
            case seed:
                return [int(k) for k in np.random.default_rng(int(seed)).permutation(n)]
