"""Interpret kernels in tile-level form with numpy: the oracle of what targets generate.

Statements run in order, loops one iteration after the other whatever their kind; the elements of a
tile are computed together. Each scalar function is rounded to the type of its result, and `Update`
adds the terms of a reduction one after the other, as the form says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from superopt import guard
from superopt.te.eval.domain import Reals
from superopt.te.eval.frame import apply_index_function
from superopt.te.expr.dtype import INDEX, to_numpy
from superopt.te.expr.functions import REDUCTION_COMBINERS, identity_element
from superopt.te.expr.node import Apply, Axis, Const, Expr, Index, Load, Reduce
from superopt.te.expr.tensor import Tensor

from superopt.kernels.loops.tile import For, Kernel, Stmt, Store, Update  # isort: skip

AxisValues = Mapping[Axis, Any]  # an integer, or the values along an axis of the tile
Buffers = Mapping[Tensor, np.ndarray]
# Functions of kernels that are exact on fewer arguments than those of tensor expressions.
RESTRICTED_FUNCTIONS = {"exp_below": "exp"}  # of arguments that are at most 0
_REALS = Reals()


def _dot_bytes(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the sum of four products of the unsigned bytes of x and the signed ones of y."""
    x, y = np.broadcast_arrays(x, y)
    parts = [np.ascontiguousarray(v, np.uint32)[..., None] for v in (x, y)]
    products = parts[0].view(np.uint8).astype(np.int32) * parts[1].view(np.int8)
    out: np.ndarray = products.sum(-1, dtype=np.int32)
    return out


# Functions that only kernels have.
KERNEL_FUNCTIONS = {"dot_bytes": _dot_bytes}


def run_kernel(kernel: Kernel, buffers: Sequence[np.ndarray]) -> None:
    """Run a kernel on its parameters, in order; the results are written in place.

    Raises IndexError for an access out of range that no guard excludes, NotImplementedError for a
    vendor's kernel.
    """
    if kernel.library:
        raise NotImplementedError(f"{kernel.name} calls a vendor library: {kernel.library}")
    memory = dict(zip(kernel.params, buffers, strict=True))
    for t, _ in kernel.scratch:
        memory[t] = np.zeros(_static_shape(t), to_numpy(t.dtype))
    memory |= dict(kernel.tables)
    with np.errstate(all="ignore"):
        _run(kernel.body, {}, memory)


def _static_shape(t: Tensor) -> tuple[int, ...]:
    return tuple(int(d) for d in t.shape if isinstance(d, int))


def _run(body: Sequence[Stmt], axis_values: AxisValues, memory: Buffers) -> None:
    for s in body:
        match s:
            case For(axis, inner, _, until, begin):
                end = axis.size
                if until is not None:
                    end = min(end, int(_Evaluation(axis_values, memory).value(until)))
                guard.check_time("interpreting a kernel")
                first = 0 if begin is None else int(_Evaluation(axis_values, memory).value(begin))
                for n in range(first, end):
                    _run(inner, {**axis_values, axis: n}, memory)
            case Store() | Update() if s.limits:
                raise NotImplementedError(f"a masked tile: {s}")
            case Store(buffer, index, value, axes):
                e = _Evaluation({**axis_values, **_tile_values(axes)}, memory)
                memory[buffer][e.place(buffer, index)] = e.value(value)
            case Update():
                _update(s, axis_values, memory)


def _tile_values(axes: Sequence[Axis]) -> dict[Axis, np.ndarray]:
    """Return the values of each axis along its own dimension of the tile."""
    rank = len(axes)
    return {
        a: np.arange(a.size).reshape((1,) * n + (-1,) + (1,) * (rank - n - 1))
        for n, a in enumerate(axes)
    }


def _update(s: Update, axis_values: AxisValues, memory: Buffers) -> None:
    combiner, dtype = REDUCTION_COMBINERS[s.fn], s.buffer.dtype
    stored, tile = memory[s.buffer], _tile_values(s.axes)
    for where in product(*(range(a.size) for a in s.over)):
        inner = dict(zip(s.over, where, strict=True))
        e = _Evaluation({**axis_values, **tile, **inner}, memory)
        at, more = e.place(s.buffer, s.index), e.value(s.value)
        if s.value.dtype != dtype:
            more = _REALS.apply("cast", [np.asarray(more)], [s.value.dtype], dtype)
        stored[at] = _REALS.apply(combiner, [stored[at], more], [dtype, dtype], dtype)


class _Evaluation:
    """Evaluates expressions at a tile. mask: where the values are used; None for everywhere."""

    def __init__(self, axis_values: AxisValues, memory: Buffers, mask: Any = None) -> None:
        self.axis_values, self.memory, self.mask = axis_values, memory, mask

    def place(self, buffer: Tensor, index: Sequence[Expr]) -> tuple[Any, ...]:
        """Return the index of elements of a buffer. Raises IndexError where it is out of range."""
        out = []
        for e, size in zip(index, self.memory[buffer].shape, strict=True):
            i = np.asarray(self.value(e))
            bad = (i < 0) | (i >= size)
            if np.any(bad):
                if self.mask is None or np.any(bad & self.mask):
                    where = ", ".join(map(str, index))
                    raise IndexError(f"{buffer.name}[{where}] is out of {list(buffer.shape)}")
                i = np.where(bad, 0, i)
            out.append(i)
        return tuple(out)

    def value(self, e: Expr) -> Any:
        match e:
            case Const(v, dtype):
                return int(v) if dtype == INDEX else _REALS.const(v, dtype)
            case Axis():
                return self.axis_values[e]
            case Load(t, index):
                return self.memory[t][self.place(t, index)]
            case Apply("select", (condition, yes, no)):
                return self.select(condition, yes, no)
            case Apply(fn, args, dtype):
                values = [self.value(a) for a in args]
                if args[0].dtype == INDEX and fn != "cast":
                    return apply_index_function(fn, values)
                arrays, kinds = [*map(np.asarray, values)], [a.dtype for a in args]
                if fn in KERNEL_FUNCTIONS:
                    return KERNEL_FUNCTIONS[fn](*arrays)
                return _REALS.apply(RESTRICTED_FUNCTIONS.get(fn, fn), arrays, kinds, dtype)
            case Index(element, bound):
                i, n = np.asarray(self.value(element)).astype(np.int64), self.value(bound)
                return np.clip(np.where(i < 0, i + n, i), 0, n - 1)
            case Reduce():
                return self.reduce(e)
        raise NotImplementedError(f"{type(e).__name__} in a tile: {e}")

    def select(self, condition: Expr, yes: Expr, no: Expr) -> Any:
        """Return one of two values; each is read only where it is selected."""
        holds = np.asarray(self.value(condition))
        if holds.ndim == 0:
            return self.value(yes if holds else no)
        masks = (holds, ~holds) if self.mask is None else (holds & self.mask, ~holds & self.mask)
        both = [
            _Evaluation(self.axis_values, self.memory, mask).value(x)
            for x, mask in zip((yes, no), masks, strict=True)
        ]
        return np.where(holds, *both)

    def reduce(self, e: Reduce) -> Any:
        combiner = REDUCTION_COMBINERS[e.fn]
        total: Any = _REALS.const(identity_element(e.fn, e.dtype), e.dtype)
        for where in product(*(range(a.size) for a in e.axes)):
            inner = {**self.axis_values, **dict(zip(e.axes, where, strict=True))}
            item = _Evaluation(inner, self.memory, self.mask).value(e.body)
            total = _REALS.apply(combiner, [total, item], [e.dtype, e.dtype], e.dtype)
        return total
