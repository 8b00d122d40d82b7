"""Quantization of floats to integers or small floats by a scale and a zero point."""

from __future__ import annotations

from superopt.ir.op import Attr, InferError, Types, op
from superopt.ops.pointwise.cast import OVERFLOW, convert
from superopt.ops.reductions.reduce import reduce_over
from superopt.ops.shared.broadcasting import normalize_axis, rank_of
from superopt.ops.shared.scalars import expect_kinds
from superopt.te.expr import index
from superopt.te.expr.dtype import F32, F64, I32, I64, U8, DType
from superopt.te.expr.node import Expr
from superopt.te.expr.tensor import Tensor, apply, cast, compare, compute, const, select


def _saturate(e: Expr, to: DType) -> Expr:
    """A whole number in float32 or float64, limited to the range of the integer type `to`.

    NaN becomes the least element of the range, as in ONNX Runtime and ONNX's reference.
    """
    low = -(1 << (to.bits - 1)) if to.kind == "i" else 0
    high = (1 << (to.bits - (to.kind == "i"))) - 1
    return cast(select(compare("lt", low, e), apply("min", e, high), low), to)


def _parameter_at(x: Tensor, parameter: Tensor, axis: int, block: int, i: tuple[Expr, ...]) -> Expr:
    """Return the scale or zero point of the element at `i`: per tensor, per index on `axis`, or per
    block."""
    if all(n == 1 for n in parameter.shape) and parameter.rank <= 1:
        return parameter[(0,) * parameter.rank]
    if not block:
        if parameter.shape != (x.shape[axis],):
            raise InferError(
                f"{parameter.type} is not one number for each index of axis {axis} of {x.type}"
            )
        return parameter[i[axis]]
    blocks = index.dim(index.as_index(x.shape[axis] + (block - 1)) // block)
    if parameter.shape != (*x.shape[:axis], blocks, *x.shape[axis + 1 :]):
        raise InferError(
            f"{parameter.type} is not one number for each {block} on axis {axis} of {x.type}"
        )
    return parameter[(*i[:axis], i[axis] // block, *i[axis + 1 :])]


def _granularity_attrs(types: Types, attrs: dict[str, Attr]) -> dict[str, Attr]:
    """Canonical attributes: the axis from 0 where it matters, else ONNX's default."""
    scale = types[1]
    assert scale is not None
    assert scale.shape is not None
    if len(scale.shape) == 0 or scale.shape == (1,):
        return attrs | {"axis": 1, "block_size": 0}
    return attrs | {"axis": normalize_axis(attrs["axis"], rank_of(types))}


def _quantize_attrs(types: Types, attrs: dict[str, Attr]) -> dict[str, Attr]:
    """Canonical attributes: the output type is given only if no zero point determines it."""
    zero = types[2] if len(types) > 2 else None
    to = attrs["output_dtype"] or None
    if zero is not None:
        if to is not None and to != zero.dtype:
            raise InferError(f"QuantizeLinear to {to} with a zero point of {zero.dtype}")
        to = zero.dtype
    saturate = int(bool(attrs["saturate"])) if to in OVERFLOW else 1
    scale = types[1]
    assert scale is not None
    precision = attrs["precision"] or None
    precision = None if precision == scale.dtype else precision
    written = None if zero is not None or to == U8 else to
    settled = attrs | {"output_dtype": written, "saturate": saturate, "precision": precision}
    return _granularity_attrs(types, settled)


@op(
    "QuantizeLinear",
    example=("f32[2,3] f32[] u8[]", "f32[2,3,4] f32[3] i8[3]", "f32[2,6] f32[2,2] block_size=3"),
    since=10,
    canonical=_quantize_attrs,
)
def quantize_linear(
    x: Tensor,
    y_scale: Tensor,
    y_zero_point: Tensor | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: DType | None = None,
    precision: DType | None = None,
    saturate: int = 1,
) -> Tensor:
    """round(x / y_scale) + y_zero_point, limited to the range of the result's type.

    The quotient is of the scale's type, or of `precision`; for small floats it stays unrounded.
    """
    to = output_dtype or (U8 if y_zero_point is None else y_zero_point.dtype)
    kind = precision or y_scale.dtype
    expect_kinds("QuantizeLinear", "if", x)
    if not kind.is_float or kind.bits < 16:
        raise InferError(f"QuantizeLinear divides {x.type} in floats, not in {kind}")

    def element(*i: Expr) -> Expr:
        scale = cast(_parameter_at(x, y_scale, axis, block_size, i), kind)
        e = cast(x[i], kind) / scale
        zero = None if y_zero_point is None else _parameter_at(x, y_zero_point, axis, block_size, i)
        if to.is_float:
            return convert(e if zero is None else e + cast(zero, kind), to, bool(saturate))
        # float32 holds every sum that does not saturate
        whole = cast(apply("round", e), kind if kind == F64 else F32)
        return _saturate(whole if zero is None else whole + cast(zero, whole.dtype), to)

    return compute(x.shape, element)


def _dequantize_attrs(types: Types, attrs: dict[str, Attr]) -> dict[str, Attr]:
    scale = types[1]
    assert scale is not None
    to = attrs["output_dtype"] or None
    return _granularity_attrs(types, attrs | {"output_dtype": None if to == scale.dtype else to})


@op(
    "DequantizeLinear",
    example=("u8[2,3] f32[] u8[]", "i8[2,3,4] f32[3]", "i8[2,6] f32[2,2] block_size=3"),
    since=10,
    canonical=_dequantize_attrs,
)
def dequantize_linear(
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: DType | None = None,
) -> Tensor:
    """(x - x_zero_point) * x_scale, computed in float32 and rounded to the result's type."""
    to = output_dtype or x_scale.dtype
    if not to.is_float or to.bits < 16:
        raise InferError(f"DequantizeLinear to {to}, which is not a full-precision float type")
    if x_zero_point is not None and x_zero_point.dtype != x.dtype:
        raise InferError(f"DequantizeLinear of {x.type} with a zero point of {x_zero_point.dtype}")
    kind = F64 if to == F64 else F32

    def element(*i: Expr) -> Expr:
        e: Expr = x[i]
        if x_zero_point is not None:
            zero = _parameter_at(x, x_zero_point, axis, block_size, i)
            exact = (I64 if x.dtype.bits >= 32 else I32) if x.dtype.is_int else kind
            e = cast(e, exact) - cast(zero, exact)
        scale = _parameter_at(x, x_scale, axis, block_size, i)
        return cast(cast(e, kind) * cast(scale, kind), to)

    return compute(x.shape, element)


@op("DynamicQuantizeLinear", example="f32[2,3]", since=11)
def dynamic_quantize_linear(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Quantize `x` to 8 bits, with the scale and zero point that map its range, extended to 0, to
    0..255.

    The scale of an empty range is 1, as in ONNX Runtime: ONNX's formula gives 0, and 0 / 0 cannot
    be quantized.
    """
    expect_kinds("DynamicQuantizeLinear", "f", x)
    axes = tuple(range(x.rank))
    top = compute((), lambda: apply("max", reduce_over("max", x, axes, (), lambda *k: x[k]), 0))
    bottom = compute((), lambda: apply("min", reduce_over("min", x, axes, (), lambda *k: x[k]), 0))

    def of_range() -> Expr:
        width = top[()] - bottom[()]
        return select(compare("eq", width, 0), const(1, x.dtype), width / 255)

    scale = compute((), of_range)

    def zero_point() -> Expr:
        shift = -(bottom[()] / scale[()])  # NaN where the range, or its least element, is infinite
        return apply("round", select(compare("lt", shift, 255), apply("max", shift, 0), 255))

    zero = compute((), zero_point)
    y = compute(
        x.shape,
        lambda *i: _saturate(apply("round", x[i] / scale[()]) + zero[()], U8),
    )
    return y, scale, compute((), lambda: cast(zero[()], U8))
