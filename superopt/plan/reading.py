"""A tensor computed from buffers: what a kernel reads, and of which kind that is in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from superopt.te.dtype import DType, to_numpy
from superopt.te.expr import Tensor
from superopt.te.inline import Inlining
from superopt.te.node import Apply, Const, Expr, Load


def rounded(load: Callable[[], np.ndarray], kind: DType) -> Callable[[], np.ndarray]:
    """A constant of another kind; what is too large for that is infinite."""

    def made() -> np.ndarray:
        with np.errstate(over="ignore"):
            return load().astype(to_numpy(kind))

    return made


def reading(t: Tensor, buffers: Mapping[Tensor, Tensor], kind: DType) -> Tensor:
    """The tensor, computed from buffers, and of this kind in memory."""
    assert t.body is not None
    body = _Reading(buffers).expr(t.body)
    if kind != t.dtype:
        body = Apply("cast", (body,), kind)
    return Tensor(t.name, kind, t.shape, t.axes, body)


class _Reading(Inlining):
    """Loads of others; what is computed on the way stays so. What lies in memory as another kind of
    float is made what it was when it is read, beyond an edge, too: there is one cast of all."""

    def __init__(self, buffers: Mapping[Tensor, Tensor]) -> None:
        super().__init__(buffers)
        self.stages: dict[Tensor, Tensor] = {}

    def _expr(self, e: Expr) -> Expr:
        if isinstance(e, Load):
            index = tuple(map(self.expr, e.index))
            buffer = self.bodies.get(e.tensor) or self.stage(e.tensor)
            read = Load(buffer, index, buffer.dtype)
            return read if buffer.dtype == e.dtype else Apply("cast", (read,), e.dtype)
        out = super()._expr(e)
        match out:
            case Apply(
                "select", (guard, Apply("cast", (Load(_, _, kind) as read,), dtype), Const(v))
            ):
                zero = Const(v, kind)
                return Apply("cast", (Apply("select", (guard, read, zero), kind),), dtype)
        return out

    def stage(self, t: Tensor) -> Tensor:
        if t.body is None:
            return t
        if t not in self.stages:
            body = self.expr(t.body)
            self.stages[t] = Tensor(t.name, t.dtype, t.shape, t.axes, body)
        return self.stages[t]
