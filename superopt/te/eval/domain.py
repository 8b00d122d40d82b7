"""A `Domain` defines how elements are stored and computed with.

`Reals()` has the semantics of the element types: integers wrap and divide toward zero; types below
32 bits are rounded after each scalar function (reductions accumulate in float32, then round).
`Reals(F64)` computes every float type in float64: the reference for numerical checks.

An array of a domain may have leading component axes (a prime-field element is a pair of residues);
all code indexes elements by trailing axes, so that component axes pass through.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

import ml_dtypes
import numpy as np

from superopt import guard
from superopt.te.eval.blas import matmul
from superopt.te.expr.dtype import BOOL, F32, I2, I4, U2, U4, DType, to_numpy
from superopt.te.expr.functions import scalar_function
from superopt.te.expr.node import Number
from superopt.te.expr.tensor import TensorType

TIMED_PRODUCTS = 1 << 28  # multiplications between two checks of the time: 30 ms to 0.5 s
# Integer products are exact in float64 while their sums stay below this.
_MAX_EXACT_FLOAT64 = 1 << 53


class Domain(Protocol):
    """How elements of each type are stored and computed with."""

    def storage_dtype(self, dtype: DType) -> np.dtype:
        """Return the numpy dtype of an array of `dtype` elements."""

    def component_shape(self, dtype: DType) -> tuple[int, ...]:
        """Return the shape of the component axes in front of an array of `dtype` elements."""

    def load(self, array: np.ndarray, type: TensorType) -> np.ndarray:
        """Return an input as an array of the domain; TypeError or ValueError if it is not of
        `type`."""

    def const(self, value: Number, dtype: DType) -> np.ndarray:
        """Return a constant of shape `component_shape(dtype)`."""

    def apply(
        self, fn: str, args: Sequence[np.ndarray], kinds: Sequence[DType], dtype: DType
    ) -> np.ndarray:
        """Return the scalar function `fn` of broadcastable arrays with element types `kinds`."""

    def accumulation_dtype(self, dtype: DType) -> DType:
        """Return the type in which reductions of `dtype` elements accumulate."""

    def reduce(self, fn: str, x: np.ndarray, axes: tuple[int, ...], dtype: DType) -> np.ndarray:
        """Return `fn` over `axes` (negative), which keep length 1; an empty reduction gives its
        identity."""

    def matmul(self, a: np.ndarray, b: np.ndarray, dtype: DType) -> np.ndarray:
        """Return matrix products of the last two axes, broadcast over the others."""

    def random(self, type: TensorType, seed: int) -> np.ndarray:
        """Return random elements that are determined by the seed."""


@dataclass(frozen=True, slots=True)
class Reals:
    """ONNX semantics; with `float_dtype`, every float type is computed in that type."""

    float_dtype: DType | None = None

    def storage_dtype(self, dtype: DType) -> np.dtype:
        return to_numpy(
            self.float_dtype if self.float_dtype is not None and dtype.is_float else dtype
        )

    def component_shape(self, dtype: DType) -> tuple[int, ...]:
        return ()

    def load(self, array: np.ndarray, type: TensorType) -> np.ndarray:
        assert type.dtype is not None
        stored = self.storage_dtype(type.dtype)
        if array.dtype == stored:
            return array
        if array.dtype != to_numpy(type.dtype) and not (type.dtype.kind == "s"):
            raise TypeError(f"got {array.dtype} elements for {type}")
        guard.require_memory(array.size * stored.itemsize, f"{array.size} elements as {stored}")
        with np.errstate(all="ignore"):
            return array.astype(stored)

    def const(self, value: Number, dtype: DType) -> np.ndarray:
        stored = self.storage_dtype(dtype)
        if isinstance(value, Fraction):
            value = value.numerator / value.denominator
        if isinstance(value, int) and dtype.is_int:
            value = wrap(value, dtype)
        return np.asarray(value, np.float64 if stored.kind == "V" else None).astype(stored)

    def apply(
        self, fn: str, args: Sequence[np.ndarray], kinds: Sequence[DType], dtype: DType
    ) -> np.ndarray:
        if fn == "cast":
            return self._cast(args[0], kinds[0], dtype)
        stored = self.storage_dtype(dtype)
        if fn == "bitcast":
            bits = np.ascontiguousarray(args[0].astype(to_numpy(kinds[0])))
            return bits.view(to_numpy(dtype)).reshape(args[0].shape).astype(stored)
        if fn == "select":
            return np.where(args[0], args[1], args[2])
        row = scalar_function(fn)
        kind = kinds[0]
        own = self.storage_dtype(kind)
        implementation = row.float_impl if kind.kind in "fc" else row.int_impl
        if implementation is None:
            raise TypeError(f"{fn} has no meaning on {kind}")
        wide = compute_dtype(own)
        if wide == own:
            out = implementation(*args)
        else:
            out = implementation(*(a.astype(wide) for a in args))
        return out if out.dtype == stored else out.astype(stored)

    def _cast(self, x: np.ndarray, source_dtype: DType, dtype: DType) -> np.ndarray:
        stored = self.storage_dtype(dtype)
        if dtype == BOOL:
            nonzero: np.ndarray = x != 0
            return nonzero
        if x.dtype == stored:
            return x
        if dtype.kind == "f" and dtype.bits <= 8 and self.float_dtype is None:
            return saturating_cast(x, stored)
        if stored.itemsize == 1 and stored.kind == "V":  # 4-bit and 2-bit integers of ml_dtypes
            x = x.astype(np.int64) if x.dtype.kind != "f" else np.trunc(x).astype(np.int64)
        if dtype.kind == "u" and x.dtype.kind == "f":
            x = x.astype(np.int64) if dtype.bits < 64 else x
        return x.astype(stored)

    def accumulation_dtype(self, dtype: DType) -> DType:
        return F32 if self.float_dtype is None and dtype.is_float and dtype.bits < 32 else dtype

    def reduce(self, fn: str, x: np.ndarray, axes: tuple[int, ...], dtype: DType) -> np.ndarray:
        stored = self.storage_dtype(dtype)
        wide = compute_dtype(stored)
        y = x if x.dtype == wide else x.astype(wide)
        match fn:
            case "sum":
                out = np.add.reduce(y, axis=axes, dtype=wide, keepdims=True)
            case "prod":
                out = np.multiply.reduce(y, axis=axes, dtype=wide, keepdims=True)
            case "any":
                out = np.logical_or.reduce(y, axis=axes, keepdims=True)
            case "all":
                out = np.logical_and.reduce(y, axis=axes, keepdims=True)
            case "max" | "min":
                fold = np.maximum if fn == "max" else np.minimum
                if any(y.shape[a] == 0 for a in axes):
                    first = extremum_identity(fn, dtype, wide)
                    out = fold.reduce(y, axis=axes, keepdims=True, initial=first)
                else:
                    out = fold.reduce(y, axis=axes, keepdims=True)
            case _:
                raise ValueError(f"no reduction {fn!r}")
        result: np.ndarray = np.asarray(out)
        return result if result.dtype == stored else result.astype(stored)

    def matmul(self, a: np.ndarray, b: np.ndarray, dtype: DType) -> np.ndarray:
        stored = self.storage_dtype(dtype)
        if stored.kind in "iub" or dtype.is_int:
            return _integer_matmul(a, b, stored)
        wide = compute_dtype(stored)
        out = timed_matmul(as_blas_layout(a, wide), as_blas_layout(b, wide))
        return out if wide == stored else out.astype(stored)

    def random(self, type: TensorType, seed: int) -> np.ndarray:
        assert type.dtype is not None
        assert type.shape is not None
        shape = tuple(int(d) for d in type.shape if isinstance(d, int))
        rng = np.random.default_rng(seed)
        stored = self.storage_dtype(type.dtype)
        if type.dtype == BOOL:
            return rng.integers(0, 2, shape).astype(np.bool_)
        if type.dtype.is_int:
            top = min(9, (1 << (type.dtype.bits - 1)) - 1)
            low = 0 if type.dtype.kind == "u" else -top
            return rng.integers(low, top + 1, shape).astype(stored)
        if type.dtype.is_float:
            return rng.standard_normal(shape).astype(stored)
        raise TypeError(f"cannot draw random elements of {type.dtype}")


# Computed in int16 and wrapped when stored: ml_dtypes 0.7 does not wrap floats any more.
NARROW_INTEGERS = tuple(map(to_numpy, (I4, U4, I2, U2)))


def compute_dtype(stored: np.dtype) -> np.dtype:
    """Return the dtype for arithmetic on `stored` elements: float32 for smaller floats."""
    if stored.kind == "f" and stored.itemsize < 4:
        return np.dtype(np.float32)
    if stored.kind in "fiubcO":
        return stored
    return np.dtype(np.int16 if stored in NARROW_INTEGERS else np.float32)


def wrap(value: int, dtype: DType) -> int:
    """Return `value` modulo 2^bits in the range of the integer type `dtype`."""
    low = value & ((1 << dtype.bits) - 1)
    return low - (1 << dtype.bits) if dtype.kind == "i" and low >> (dtype.bits - 1) else low


def extremum_identity(fn: str, dtype: DType, stored: np.dtype) -> float | int | bool:
    """Return the identity of max or min."""
    if dtype == BOOL:
        return fn == "min"
    if dtype.is_float:
        return -math.inf if fn == "max" else math.inf
    low = -(1 << (dtype.bits - 1)) if dtype.kind == "i" else 0
    return low if fn == "max" else low + (1 << dtype.bits) - 1


def saturating_cast(x: np.ndarray, stored: np.dtype) -> np.ndarray:
    """Return `x` rounded to an 8-bit float; values beyond the largest one saturate, as in ONNX."""
    top = float(ml_dtypes.finfo(stored).max)  # type: ignore[no-untyped-call]
    wide = x.astype(np.float32)
    return np.where(np.isnan(wide), wide, np.clip(wide, -top, top)).astype(stored)


def as_blas_layout(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return `x` in `dtype` with its last two axes in a layout that BLAS reads (else numpy uses
    slow loops)."""
    if x.dtype != dtype:
        return x.astype(dtype, order="C")
    rows, columns = x.strides[-2:]
    size = x.itemsize
    straight = columns == size and rows >= size * x.shape[-1]
    across = rows == size and columns >= size * x.shape[-2]
    return x if straight or across else np.ascontiguousarray(x)


def _integer_matmul(a: np.ndarray, b: np.ndarray, stored: np.dtype) -> np.ndarray:
    """Return the product modulo 2^bits: by float64 where no sum rounds, else by 64-bit integers."""
    bound = a.shape[-1]
    for x in (a, b):
        y = x if x.dtype.kind in "iub" else x.astype(np.int16)
        bound *= max(abs(int(y.max())), abs(int(y.min()))) if y.size else 0
    wide = np.dtype(np.uint64) if stored == np.uint64 else np.dtype(np.int64)
    if bound < _MAX_EXACT_FLOAT64:
        f64 = np.dtype(np.float64)
        return (
            timed_matmul(as_blas_layout(a, f64), as_blas_layout(b, f64))
            .astype(np.int64)
            .astype(stored)
        )
    return timed_matmul(a.astype(wide), b.astype(wide)).astype(stored)


def timed_matmul(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return `np.matmul(a, b)`, in pieces of at most TIMED_PRODUCTS multiplications. Raises
    OutOfTime before a piece where the time of the call is over."""
    guard.check_time("evaluating a graph")
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    lengths = (*batch, a.shape[-2], b.shape[-1])
    pieces = math.ceil(math.prod(lengths) * a.shape[-1] / TIMED_PRODUCTS)
    longest = max(lengths)
    if pieces <= 1 or longest <= 1:
        return matmul(a, b)
    axis = lengths.index(longest) - len(lengths)
    step = math.ceil(longest / pieces)
    out = np.empty(lengths, a.dtype)
    for start in range(0, longest, step):
        sides = [
            x if axis == kept else _cut(x, axis, start, step) for x, kept in ((a, -1), (b, -2))
        ]
        _cut(out, axis, start, step)[...] = timed_matmul(*sides)
    return out


def _cut(x: np.ndarray, axis: int, start: int, length: int) -> np.ndarray:
    """A range of an axis, counted from the end; all of `x` where it is broadcast along that."""
    if x.ndim < -axis or x.shape[axis] == 1:
        return x
    return np.moveaxis(np.moveaxis(x, axis, 0)[start : start + length], 0, axis)
