"""Contractions of quantized tensors: exact in integers, with scales and zero points."""

from __future__ import annotations

from collections.abc import Sequence

from superopt.ir.op import InferError, op
from superopt.ops.nn.conv import canonical_conv, conv_geometry, convolution
from superopt.ops.reductions.matmul import matrix_product
from superopt.ops.shared.windows import Window
from superopt.te.expr.dtype import F32, I8, I32, U8, DType
from superopt.te.expr.node import Expr
from superopt.te.expr.tensor import Dim, Tensor, apply, cast, compute

_INT8_RANGES = {I8: (-128, 127), U8: (0, 255)}


def _parameter_at(name: str, value: Tensor, x: Tensor, axis: int, i: tuple[Expr, ...]) -> Expr:
    """Return the scale or zero point for element `i` of `x`: per tensor or per index along
    `axis`."""
    if value.rank == 0:
        return value[()]
    if value.shape == (1,):
        return value[0]
    axis %= x.rank
    if value.shape == (x.shape[axis],):
        return value[i[axis]]
    if value.rank == x.rank and all(
        n in (1, own) for n, own in zip(value.shape, x.shape, strict=True)
    ):
        return value[tuple(0 if n == 1 else e for n, e in zip(value.shape, i, strict=True))]
    raise InferError(f"{name}: {value.type} is neither one value for {x.type} nor one along {axis}")


def _subtract_zero_point(name: str, x: Tensor, zero_point: Tensor | None, axis: int) -> Tensor:
    """x - zero_point, as i32; `axis` is the one along which zero points may differ."""
    if x.dtype not in _INT8_RANGES:
        raise InferError(f"{name} of {x.type}: {x.dtype} is not i8 or u8")
    if zero_point is None:
        return compute(x.shape, lambda *i: cast(x[i], I32), name="x32")
    if zero_point.dtype != x.dtype:
        raise InferError(f"{name}: {x.type} with zero point {zero_point.type}")
    z = zero_point
    return compute(
        x.shape,
        lambda *i: cast(x[i], I32) - cast(_parameter_at(name, z, x, axis, i), I32),
        name="x32",
    )


def _single_value(name: str, value: Tensor) -> Expr:
    """Return the element of a tensor of one element."""
    if value.shape not in ((), (1,)):
        raise InferError(f"{name}: {value.type} is not one value")
    return value[(0,) * value.rank]


def _requantize(e: Expr, scale: Expr, zero_point: Expr) -> Expr:
    """round(e * scale) + zero_point in the range of the zero point's type; e is i32."""
    low, high = _INT8_RANGES[zero_point.dtype]
    value = apply("round", cast(e, scale.dtype) * scale) + cast(zero_point, scale.dtype)
    return cast(apply("min", apply("max", value, low), high), zero_point.dtype)


@op("MatMulInteger", example="u8[2,3] i8[3,4] u8[] i8[4]", since=10)
def matmul_integer(
    a: Tensor, b: Tensor, a_zero_point: Tensor | None = None, b_zero_point: Tensor | None = None
) -> Tensor:
    """(a - a_zero_point) (b - b_zero_point) in i32; zero points of rows of a, columns of b."""
    left = _subtract_zero_point("MatMulInteger", a, a_zero_point, -2 if a.rank > 1 else -1)
    right = _subtract_zero_point("MatMulInteger", b, b_zero_point, -1)
    return matrix_product("MatMulInteger", left, right)


@op(
    "QLinearMatMul",
    example="u8[2,3] f32[] u8[] u8[3,4] f32[] u8[] f32[] u8[]",
    since=10,
)
def qlinear_matmul(
    a: Tensor,
    a_scale: Tensor,
    a_zero_point: Tensor,
    b: Tensor,
    b_scale: Tensor,
    b_zero_point: Tensor,
    y_scale: Tensor,
    y_zero_point: Tensor,
) -> Tensor:
    """The matrix product of two quantized tensors, quantized."""
    name = "QLinearMatMul"
    for x, *numbers in ((a, a_scale, a_zero_point), (b, b_scale, b_zero_point)):
        for value in numbers if x.rank < 2 else ():
            _single_value(name, value)  # a vector has neither rows nor columns
    total = matrix_product(
        name,
        _subtract_zero_point(name, a, a_zero_point, -2 if a.rank > 1 else -1),
        _subtract_zero_point(name, b, b_zero_point, -1),
    )
    _check_scales(name, a_scale, b_scale, y_scale)
    if y_zero_point.dtype not in _INT8_RANGES:
        raise InferError(f"{name} to {y_zero_point.dtype}: not i8 or u8")

    def element(*i: Expr) -> Expr:
        scale = _parameter_at(name, a_scale, total, -2, i) * _parameter_at(
            name, b_scale, total, -1, i
        )
        return _requantize(
            total[i], scale / _single_value(name, y_scale), _single_value(name, y_zero_point)
        )

    return compute(total.shape, element)


def _check_scales(name: str, *scales: Tensor) -> DType:
    for s in scales:
        if s.dtype != scales[0].dtype or not s.dtype.is_float:
            raise InferError(f"{name}: scales are {', '.join(str(t.type) for t in scales)}")
    return scales[0].dtype


@op(
    "ConvInteger",
    example="u8[1,2,4,5] i8[3,2,2,3] u8[] pads=(1,0,0,1)",
    since=10,
    canonical=canonical_conv("ConvInteger"),
)
def conv_integer(
    x: Tensor,
    w: Tensor,
    x_zero_point: Tensor | None = None,
    w_zero_point: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: tuple[int, ...] | None = None,
    group: int = 1,
    kernel_shape: tuple[int, ...] | None = None,
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Tensor:
    """The convolution of x - x_zero_point and w - w_zero_point, in i32."""
    name = "ConvInteger"
    geometry = conv_geometry(name, x, w, None, group, strides, dilations, pads, auto_pad)
    return _integer_convolution(name, x, w, x_zero_point, w_zero_point, None, *geometry)


def _integer_convolution(
    name: str,
    x: Tensor,
    w: Tensor,
    x_zero_point: Tensor | None,
    w_zero_point: Tensor | None,
    b: Tensor | None,
    groups: tuple[Dim, Dim, Dim],
    ws: Sequence[Window],
) -> Tensor:
    if x_zero_point is not None:
        _single_value(name, x_zero_point)
    if b is not None and b.dtype != I32:
        raise InferError(f"{name} of x {x.type} with w {w.type}: the bias is {b.dtype}, not i32")
    values = _subtract_zero_point(name, x, x_zero_point, 1)
    weights = _subtract_zero_point(name, w, w_zero_point, 0)
    return convolution(values, weights, b, groups, ws)


@op(
    "QLinearConv",
    example="u8[1,2,4,5] f32[] u8[] i8[3,2,2,3] f32[3] i8[3] f32[] u8[] i32[3] strides=(1,2)",
    since=10,
    canonical=canonical_conv("QLinearConv", 3),
)
def qlinear_conv(
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor,
    w: Tensor,
    w_scale: Tensor,
    w_zero_point: Tensor,
    y_scale: Tensor,
    y_zero_point: Tensor,
    b: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: tuple[int, ...] | None = None,
    group: int = 1,
    kernel_shape: tuple[int, ...] | None = None,
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Tensor:
    """The convolution of quantized tensors, quantized; the scale of w may differ for each m."""
    name = "QLinearConv"
    geometry = conv_geometry(name, x, w, b, group, strides, dilations, pads, auto_pad)
    total = _integer_convolution(name, x, w, x_zero_point, w_zero_point, b, *geometry)
    if _check_scales(name, x_scale, w_scale, y_scale) != F32:
        raise InferError(f"{name}: scales are {x_scale.dtype}, not f32")
    if y_zero_point.dtype not in _INT8_RANGES:
        raise InferError(f"{name} to {y_zero_point.dtype}: not i8 or u8")
    if w_scale.shape not in ((), (1,), (w.shape[0],)):
        raise InferError(
            f"{name}: weight scale has type {w_scale.type}, expected a scalar or [{w.shape[0]}]"
        )

    def element(*i: Expr) -> Expr:
        scale = _single_value(name, x_scale) * _parameter_at(name, w_scale, total, 1, i)
        return _requantize(
            total[i], scale / _single_value(name, y_scale), _single_value(name, y_zero_point)
        )

    return compute(total.shape, element)
