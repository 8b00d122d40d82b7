"""Read definitions from buffers whose element types differ from the computation's."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from superopt.plan.program.target import TF32_DROPPED_BITS
from superopt.te.analysis.inline import Inliner
from superopt.te.expr.dtype import F32, DType, to_numpy
from superopt.te.expr.node import Apply, Const, Expr, Load, Reduce
from superopt.te.expr.tensor import Tensor

EXACT_PADDING_VALUES = (
    0,
    float("inf"),
    float("-inf"),
)  # padding values that are exact in all float types


def narrowed_loader(
    load: Callable[[], np.ndarray], dtype: DType, dropped_bits: int
) -> Callable[[], np.ndarray]:
    """Return a loader of a constant in another element type, or rounded to fewer mantissa bits;
    overflow gives infinity."""

    def made() -> np.ndarray:
        if dropped_bits:
            bits = np.ascontiguousarray(load()).view(np.uint32)
            kept = (bits + np.uint32(1 << dropped_bits - 1)) & np.uint32(
                2**32 - (1 << dropped_bits)
            )
            return np.where(np.isfinite(load()), kept.view(np.float32), load())
        with np.errstate(over="ignore"):
            return load().astype(to_numpy(dtype))

    return made


def read_from_buffers(
    t: Tensor,
    buffers: Mapping[Tensor, Tensor],
    storage_dtype: DType,
    dropped_bits: int,
    narrow_dtype: DType | None,
) -> Tensor:
    """Return the tensor with its reads from buffers, stored as `storage_dtype`. dropped_bits:
    trailing mantissa bits that are zeroed. narrow_dtype: the type in which floats are multiplied if
    one factor has it."""
    assert t.body is not None
    body = _BufferReader(buffers, narrow_dtype).expr(t.body)
    if storage_dtype != t.dtype:
        body = Apply("cast", (body,), storage_dtype)
    elif dropped_bits:
        assert dropped_bits == TF32_DROPPED_BITS
        body = Apply("tf32", (body,), storage_dtype)  # a function that only kernels implement
    return Tensor(t.name, storage_dtype, t.shape, t.axes, body)


class _BufferReader(Inliner):
    """Redirects loads to buffers, also in inlined stages. A value that is stored in another float
    type is cast when it is read, together with its padding value: one cast for both."""

    def __init__(self, buffers: Mapping[Tensor, Tensor], narrow_dtype: DType | None) -> None:
        super().__init__(buffers)
        self.narrow_dtype = narrow_dtype
        self.stages: dict[Tensor, Tensor] = {}

    def _expr(self, e: Expr) -> Expr:
        if isinstance(e, Load):
            index = tuple(map(self.expr, e.index))
            buffer = self.definitions.get(e.tensor) or self.stage(e.tensor)
            read = Load(buffer, index, buffer.dtype)
            return read if buffer.dtype == e.dtype else Apply("cast", (read,), e.dtype)
        out = super()._expr(e)
        match out:
            case Reduce("sum", axes, Apply("mul", (x, y), dtype), kind) if (
                self.narrow_dtype is not None
            ):
                some = tuple(self._narrow_factor(a, b) for a, b in ((x, y), (y, x)))
                return Reduce("sum", axes, Apply("mul", some, dtype), kind)
            case Apply(
                "select", (guard, Apply("cast", (Load(_, _, kind) as read,), dtype), Const(v))
            ) if kind.is_float and v in EXACT_PADDING_VALUES:
                zero = Const(v, kind)
                return Apply("cast", (Apply("select", (guard, read, zero), kind),), dtype)
        return out

    def _narrow_factor(self, e: Expr, other_factor: Expr) -> Expr:
        """Return a factor that is given in float32 rounded to 16 bits, where the other factor has
        16 bits."""
        match other_factor, e:
            case (
                Apply("cast", (x,), _),
                Load(Tensor(body=None)) | Apply("select", (_, Load(Tensor(body=None)), Const())),
            ) if x.dtype == self.narrow_dtype and e.dtype == F32:
                return Apply("cast", (Apply("cast", (e,), x.dtype),), F32)
        return e

    def stage(self, t: Tensor) -> Tensor:
        if t.body is None:
            return t
        if t not in self.stages:
            body = self.expr(t.body)
            self.stages[t] = Tensor(t.name, t.dtype, t.shape, t.axes, body)
        return self.stages[t]
