"""Operators that create a tensor from sizes and attributes, without reading elements."""

from __future__ import annotations

import math
from collections.abc import Sequence

from superopt.ir.op import Attr, InferError, Types, op
from superopt.ops.movement.layout import known_type
from superopt.ops.shared.sizes import ceil_div, max_size, size_tuple, subtract_sizes
from superopt.te.expr import index
from superopt.te.expr.dtype import BF16, BOOL, F16, F32, F64, I64, DType
from superopt.te.expr.node import Expr
from superopt.te.expr.tensor import Dim, Tensor, cast, compare, compute, const, product, select


def _select_by_index(values: Sequence[Expr], i: Expr, start: int = 0) -> Expr:
    """Return values[i - start], by bisection."""
    if len(values) == 1:
        return values[0]
    half = len(values) // 2
    middle = start + half
    return select(
        i < middle,
        _select_by_index(values[:half], i, start),
        _select_by_index(values[half:], i, middle),
    )


def _shape_attrs(types: Types, attrs: dict[str, Attr]) -> dict[str, Attr]:
    """Which axes, as 0 <= start <= end <= rank."""
    _, shape = known_type(types)
    rank = len(shape)
    start, end = attrs["start"], rank if attrs["end"] is None else attrs["end"]
    if not (isinstance(start, int) and isinstance(end, int)):
        raise InferError(f"start {start} and end {end} are to be axes")
    low = min(max(start + rank if start < 0 else start, 0), rank)
    high = min(max(end + rank if end < 0 else end, 0), rank)
    return {"start": low, "end": max(low, high)}


@op("Shape", example="f32[2,3,4] start=1", canonical=_shape_attrs)
def shape_(x: Tensor, *, start: int = 0, end: int | None = None) -> Tensor:
    """The sizes of the axes from `start` to before `end`, as i64[n]."""
    dims = [cast(index.as_index(d), I64) for d in x.shape[start:end]]
    return compute((len(dims),), lambda i: _select_by_index(dims, i) if dims else const(0, I64))


@op("Size", example="f32[2,3]")
def size_(x: Tensor) -> Tensor:
    """The number of elements, as i64[]."""
    return compute((), lambda: cast(index.as_index(product(x.shape)), I64))


def _constant_of_shape_attrs(types: Types, attrs: dict[str, Attr]) -> dict[str, Attr]:
    dims = size_tuple(attrs["input"], "input")
    for d in dims:
        if isinstance(d, int) and d < 0:
            raise InferError(f"ConstantOfShape of {attrs['input']}: {d} is not a size")
    value, dtype = attrs["value"], attrs["dtype"]
    if not isinstance(dtype, DType) or not isinstance(value, (bool, int, float)):
        raise InferError(f"ConstantOfShape: value {value} of {dtype}")
    number: Attr = float(value) if dtype.is_float else int(value)
    return {"input": dims, "value": number, "dtype": dtype}


@op("ConstantOfShape", example="input=(2,3) value=1.5", since=9, canonical=_constant_of_shape_attrs)
def constant_of_shape(
    *, input: tuple[Dim, ...], value: float | int = 0.0, dtype: DType = F32
) -> Tensor:
    """A tensor of shape `input` whose elements are `value`."""
    return compute(input, lambda *i: const(value, dtype))


@op("EyeLike", example="f32[3,4] k=1", since=9)
def eye_like(x: Tensor, *, dtype: DType | None = None, k: int = 0) -> Tensor:
    """Ones on diagonal `k` of a matrix shaped like `x`; `dtype` is by default that of `x`."""
    kind = dtype or x.dtype
    if x.rank != 2 or not (kind.is_number or kind == BOOL):
        raise InferError(f"EyeLike of {x.type} as {kind}: it takes a matrix of numbers")
    one, zero = const(1, kind), const(0, kind)
    return compute(x.shape, lambda i, j: select(compare("eq", i + k, j), one, zero))


def _range_attrs(types: Types, attrs: dict[str, Attr]) -> dict[str, Attr]:
    """start, limit, delta in numbers of `dtype`: by default i64, or f32 where one is a float."""
    values = {k: attrs[k] for k in ("start", "limit", "delta")}
    for k, v in values.items():
        values[k] = v[0] if isinstance(v, tuple) and len(v) == 1 else v
        if isinstance(values[k], bool) or not isinstance(values[k], (int, float, Expr)):
            raise InferError(f"Range: {k} is {v}")
    dtype = attrs["dtype"]
    if dtype is None:
        dtype = F32 if any(isinstance(v, float) for v in values.values()) else I64
    assert isinstance(dtype, DType)
    if not dtype.is_number:
        raise InferError(f"Range of {dtype}")
    if dtype.is_int and any(isinstance(v, float) for v in values.values()):
        raise InferError(f"Range of {dtype} from {tuple(values.values())}")
    if dtype.is_float and not any(isinstance(v, Expr) for v in values.values()):
        values = {k: float(v) for k, v in values.items()}  # type: ignore[arg-type]
    elif dtype.is_float:  # of sizes
        values = {
            k: int(v) if isinstance(v, float) and v.is_integer() else v for k, v in values.items()
        }
    stash = attrs["stash_type"]
    if not isinstance(stash, DType) or dtype not in (F16, BF16):
        stash = F32  # means something for 16-bit floats only
    return {**values, "dtype": dtype, "stash_type": stash}


def _range_length(start: Dim | float, limit: Dim | float, delta: Dim | float) -> Dim:
    if delta == 0 or isinstance(delta, Expr):
        raise InferError(f"Range from {start} to {limit}: step {delta}")
    if isinstance(start, float) or isinstance(limit, float) or isinstance(delta, float):
        if isinstance(start, Expr) or isinstance(limit, Expr):
            raise InferError(f"Range from {start} to {limit} by {delta}: sizes and fractions mixed")
        # in doubles, as numpy and runtimes count; exact fractions would see that 0.1 is not 1/10
        return max(math.ceil((limit - start) / delta), 0)
    if delta > 0:
        return ceil_div(max_size(subtract_sizes(limit, start), 0), delta)
    return ceil_div(max_size(subtract_sizes(start, limit), 0), -delta)


@op("Range", example="start=1 limit=8 delta=3", since=11, canonical=_range_attrs)
def range_(
    *,
    start: Dim | float,
    limit: Dim | float,
    delta: Dim | float,
    dtype: DType | None = None,
    stash_type: DType = F32,
) -> Tensor:
    """start, start + delta, ... before `limit`; 16-bit floats are computed in `stash_type`."""
    assert dtype is not None
    n = _range_length(start, limit, delta)
    if isinstance(start, float) and isinstance(delta, float):
        wide = stash_type if dtype in (F16, BF16) else F64
        first, step = const(start, wide), const(delta, wide)
        return compute((n,), lambda i: cast(first + cast(i, wide) * step, dtype))
    assert not isinstance(start, float)
    assert isinstance(delta, int)
    return compute((n,), lambda i: cast(index.as_index(i * delta + start), dtype), dtype=dtype)
