"""Products of integers of 8 bits with a constant, as sums of products of uint8 and int8.

    sum((x - z) * (w - v))   over terms k, with zero points z of rows and v of columns, becomes

    sum(x' * w') - z' * c                        c = sum(w'), a constant
                 - u * r                         r = sum(x' - z'), where u is not 0

    x' = x, or x + 128 for int8; z' likewise. Beyond the border of an image x' is z'.
    w' = w - v if that is in int8, with u = 0; else w - 128 for uint8, with u = v - 128.

All sums are modulo 2^32, in which both sides are equal. Processors multiply uint8 by int8
(kernels/llvm/dot_products/vectors.py). Tensor cores of GPUs multiply int8 by int8
(kernels/triton/dots.py): there x' = x, or x - 128 for uint8.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from superopt.plan.lowering.derived_constants import derive_constant
from superopt.te.analysis.inline import substitute_axes
from superopt.te.analysis.walk import index_axes, loads, operands, with_operands
from superopt.te.expr.dtype import I8, I32, U8, DType
from superopt.te.expr.node import Apply, Axis, Const, Expr, Load, Reduce
from superopt.te.expr.tensor import Dim, Tensor, cast, const, select

INTEGER_PRODUCT_OPS = frozenset(("MatMulInteger", "ConvInteger", "QLinearMatMul", "QLinearConv"))
SIGN_OFFSET = 128
COLUMN_MULTIPLE = 16  # columns that instructions compute at a time
Loader = Callable[[], np.ndarray]
# Adds a constant tensor, by its name, element type, shape and loader.
AddConstant = Callable[[str, DType, tuple[Dim, ...], Loader], Tensor]


@dataclass(frozen=True, slots=True)
class _Data:
    """A factor x - z within `guard`, and 0 elsewhere. is_signed: x is int8."""

    load: Load
    zero: Expr
    guard: Expr | None
    is_signed: bool

    def difference(self) -> Expr:
        """Return x - z, 0 beyond the guard."""
        out = cast(self.load, I32) - self.zero
        return out if self.guard is None else select(self.guard, out, const(0, I32))

    def signed_values(self) -> tuple[Expr, Expr]:
        """Return x' and z' of int8."""
        x: Expr = self.load
        z = self.zero if self.is_signed else self.zero - SIGN_OFFSET
        if self.guard is not None and isinstance(self.zero, Const):
            x = select(self.guard, x, const(self.zero.value, x.dtype))
        if not self.is_signed:
            x = cast(cast(x, I32) - SIGN_OFFSET, I8)
        if self.guard is not None and not isinstance(self.zero, Const):
            x = select(self.guard, x, cast(z, I8))
        return cast(x, I32), z

    def unsigned_values(self) -> tuple[Expr, Expr]:
        """Return x' and z' of uint8."""
        x, z = cast(self.load, I32), self.zero
        if self.is_signed:
            x, z = x + SIGN_OFFSET, z + SIGN_OFFSET
        elif self.guard is not None and isinstance(z, Const) and not z.value:
            # an image may have a border of zeros in memory
            return cast(select(self.guard, self.load, const(0, U8)), I32), z
        return (x if self.guard is None else select(self.guard, x, z)), z


@dataclass(frozen=True, slots=True)
class _Weights:
    """A factor w - v of constants. column: the result's axis that selects a column of w; zero: v's
    constant, a number, or None."""

    load: Load
    column: Axis
    zero: Tensor | int | None


def split_integer_product(
    t: Tensor, constants: Mapping[Tensor, Loader], add: AddConstant, has_signed_data: bool = False
) -> Tensor:
    """Return `t` with its sum of products of 8-bit integers and constants as above; `t` itself if
    it, and what it reads, has none. has_signed_data: x' is int8."""
    return _Splitter(constants, add, has_signed_data, {}).tensor(t)


@dataclass(slots=True)
class _Splitter:
    constants: Mapping[Tensor, Loader]
    add: AddConstant
    has_signed_data: bool
    done: dict[Tensor, Tensor]

    def tensor(self, t: Tensor) -> Tensor:
        if t.body is None:
            return t
        if t not in self.done:
            body = self.expr(t.body, t)
            same = body == t.body
            self.done[t] = t if same else Tensor(t.name, t.dtype, t.shape, t.axes, body)
        return self.done[t]

    def expr(self, e: Expr, t: Tensor) -> Expr:
        match e:
            case Reduce("sum", axes, Apply("mul", (x, y))) if e.dtype == I32:
                return self.split(e, axes, _inline_operands(x), _inline_operands(y), t) or e
            case Load(of, index, dtype) if of.body is not None:
                return Load(self.tensor(of), index, dtype)
            case Apply():
                return with_operands(e, [self.expr(x, t) for x in operands(e)])
        return e

    def split(
        self, whole: Reduce, axes: tuple[Axis, ...], x: Expr, y: Expr, t: Tensor
    ) -> Expr | None:
        """Return the sum in another form; None if it has no constant factor."""
        data, weights = _match_data(x), self.match_weights(y, axes, t)
        if data is None or weights is None or _depends_on(data.zero, axes):
            return None
        if weights.column in frozenset().union(*map(index_axes, data.load.index)):
            return None  # columns of groups, which read different data
        array, rest = self.signed_weights(weights)
        name = len(self.constants)
        dims = list(weights.load.tensor.sizes)
        at = weights.load.index.index(weights.column)
        more = 0 if self.has_signed_data else -dims[at] % COLUMN_MULTIPLE
        dims[at] += more
        w = self.add(f"weights{name}", I8, tuple(dims), _padded_columns(array, at, more))
        x8, z8 = data.signed_values() if self.has_signed_data else data.unsigned_values()
        body = x8 * cast(Load(w, weights.load.index, I8), I32)
        out: Expr = Reduce("sum", axes, body, I32)
        if more:
            out = _wider_tensor(t, weights.column, out, dims[at])[t.axes]
        if not (isinstance(z8, Const) and not z8.value):
            sums = self.add(
                f"sums{name}", I32, (weights.column.extent,), _column_sums(weights, array, axes)
            )
            out = out - z8 * Load(sums, (weights.column,), I32)
        if rest is not None:
            zeros = self.add(f"zeros{name}", I32, (weights.column.extent,), rest)
            rows = _sum_of_rows(t, weights.column, _row_sums(data, axes))
            out = out - Load(zeros, (weights.column,), I32) * rows
        return out

    def match_weights(self, e: Expr, axes: tuple[Axis, ...], t: Tensor) -> _Weights | None:
        match e:
            case Apply("cast", (Load() as load,)):
                zero: Expr | None = None
            case Apply("sub", (Apply("cast", (Load() as load,)), zero)):
                pass
            case _:
                return None
        if load.tensor not in self.constants or load.dtype not in (I8, U8):
            return None
        if not all(isinstance(i, Axis | Const) for i in load.index):
            return None
        own = [i for i in load.index if i in t.axes]
        if len(own) != 1 or not isinstance(own[0], Axis) or own[0] in axes:
            return None
        column = own[0]
        match zero:
            case None:
                return _Weights(load, column, None)
            case Const(value=v):
                return _Weights(load, column, int(v))
            case Apply("cast", (Load(of, index),)) if of in self.constants:
                fits = all(i == column or isinstance(i, Const) for i in index)
                return _Weights(load, column, of) if fits else None
        return None

    def signed_weights(self, w: _Weights) -> tuple[Loader, Loader | None]:
        """Return w', and u for each column if it is not 0."""
        load = self.constants[w.load.tensor]
        axis = w.load.index.index(w.column)
        zero = w.zero if not isinstance(w.zero, Tensor) else self.constants[w.zero]
        columns = load().shape[axis]
        unsigned = w.load.dtype == U8

        def zeros() -> np.ndarray:
            v = np.asarray(zero() if callable(zero) else (zero or 0), np.int32).reshape(-1)
            return np.broadcast_to(v, (columns,)) if v.size == 1 else v

        def along_columns(v: np.ndarray, rank: int) -> np.ndarray:
            return v.reshape([-1 if d == axis else 1 for d in range(rank)])

        def difference(x: np.ndarray) -> np.ndarray:
            return np.asarray(x.astype(np.int32) - along_columns(zeros(), x.ndim))

        recipe = ("signed", axis, zero)
        exact = difference(load())
        if exact.size == 0 or (exact.min() >= -SIGN_OFFSET and exact.max() < SIGN_OFFSET):
            return derive_constant(load, recipe, lambda x: difference(x).astype(np.int8)), None
        offset = SIGN_OFFSET if unsigned else 0

        def shift_signs(x: np.ndarray) -> np.ndarray:
            return (x.astype(np.int32) - offset).astype(np.int8)

        def rest(x: np.ndarray) -> np.ndarray:
            return zeros() - np.int32(offset)

        return (
            derive_constant(load, (*recipe, "shifted"), shift_signs),
            derive_constant(load, (*recipe, "rest"), rest),
        )


def _inline_operands(e: Expr) -> Expr:
    """Return the factor with the elementwise tensors that it loads written out."""
    match e:
        case Load(t, index, dtype) if t.body is not None and dtype == I32:
            at = dict(zip(t.axes, index, strict=True))
            return _inline_operands(substitute_axes(t.body, at))
        case Apply("cast", (Const(value=v),)):
            return const(int(v), I32)
        case Apply("sub", (x, Const(value=0))):
            return _inline_operands(x)
        case Apply("select" | "sub"):
            made = with_operands(e, [_inline_operands(x) for x in operands(e)])
            return _inline_operands(made) if made != e else e
    return e


def _match_data(e: Expr) -> _Data | None:
    guard: Expr | None = None
    match e:
        case Apply("select", (g, inner, Const(value=0))):
            guard, e = g, inner
    match e:
        case Apply("cast", (Load() as load,)):
            zero: Expr = const(0, I32)
        case Apply("sub", (Apply("cast", (Load() as load,)), zero)):
            pass
        case _:
            return None
    if load.dtype not in (I8, U8):
        return None
    return _Data(load, zero, guard, load.dtype == I8)


def _depends_on(e: Expr, axes: tuple[Axis, ...]) -> bool:
    return any(index_axes(i) & {*axes} for x in loads(e) for i in x.index)


def _padded_columns(array: Loader, axis: int, more: int) -> Loader:
    """Return the loader of w' with columns of zeros behind its own."""
    if not more:
        return array

    def pad_columns(x: np.ndarray) -> np.ndarray:
        return np.pad(x, [(0, more if d == axis else 0) for d in range(x.ndim)])

    return derive_constant(array, ("padded", axis, more), pad_columns)


def _wider_tensor(t: Tensor, column: Axis, sums: Expr, columns: int) -> Tensor:
    """Return sums as a tensor of its own with more columns than `t`."""
    extents = [columns if a == column else a.extent for a in t.axes]
    own = tuple(Axis(f"i{d}", n) for d, n in enumerate(extents))
    body = substitute_axes(sums, dict(zip(t.axes, own, strict=True)))
    return Tensor("sums", I32, tuple(extents), own, body)


def _column_sums(w: _Weights, array: Loader, axes: tuple[Axis, ...]) -> Loader:
    """Return the loader of the sums of w' over all terms, one for each column."""
    dims = tuple(d for d, i in enumerate(w.load.index) if i in axes)
    return derive_constant(
        array, ("sums", dims), lambda x: x.astype(np.int32).sum(dims, dtype=np.int32).reshape(-1)
    )


def _row_sums(data: _Data, axes: tuple[Axis, ...]) -> Expr:
    """Return the sums of x - z over the axes. The channels of each pixel of an image are added
    once, not for each window."""
    load = data.load
    inside = [d for d, i in enumerate(load.index) if isinstance(i, Axis) and i in axes]
    channels = tuple(i for i in load.index if isinstance(i, Axis) and i in axes)
    window = tuple(a for a in axes if a not in channels)
    if not window or not channels:
        return Reduce("sum", axes, data.difference(), I32)
    count = prod(a.size for a in channels)
    extents = load.tensor.shape
    own = {d: Axis(f"p{d}", n) for d, n in enumerate(extents) if d not in inside}
    index = tuple(own.get(d, i) for d, i in enumerate(load.index))
    total = Reduce("sum", channels, cast(Load(load.tensor, index, load.dtype), I32), I32)
    shape = tuple(a.extent for a in own.values())
    pixels = Tensor("pixels", I32, shape, tuple(own.values()), total)
    out = Load(pixels, tuple(load.index[d] for d in own), I32) - data.zero * count
    out = out if data.guard is None else select(data.guard, out, const(0, I32))
    return Reduce("sum", window, out, I32)


def _sum_of_rows(t: Tensor, column: Axis, sums: Expr) -> Expr:
    """Return a load of the sums as a tensor of their own, over all axes but the column's."""
    axes = tuple(a for a in t.axes if a != column)
    own = tuple(Axis(f"i{d}", a.extent) for d, a in enumerate(axes))
    body = substitute_axes(sums, dict(zip(axes, own, strict=True)))
    rows = Tensor("rows", I32, tuple(a.extent for a in own), own, body)
    return Load(rows, axes, I32)
