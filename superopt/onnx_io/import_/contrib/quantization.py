"""Quantized values of com.microsoft as ONNX operators: quantize, dequantize, integer products."""

from __future__ import annotations

import numpy as np
import onnx_ir as oir

from superopt.ir import graph
from superopt.ir.op import Attr, InferError
from superopt.onnx_io.import_.contrib.build import (
    Operands,
    optional_operand,
    require_operands,
    shape_of,
)
from superopt.onnx_io.import_.ml.build import apply, cast, constant
from superopt.onnx_io.import_.schema import attribute_value
from superopt.ops import OPS
from superopt.te.expr.dtype import F32, I8, U8, DType

INT8_TYPES = (I8, U8)


def require_int8(x: graph.Value) -> DType:
    """Return the element type. Raises InferError unless it is int8 or uint8."""
    if x.type.dtype not in INT8_TYPES:
        raise InferError(f"an operand {x.type}, not of int8 or uint8")
    return x.type.dtype


def as_scalar(x: graph.Value) -> graph.Value:
    """Return a tensor of one element as a scalar. Raises InferError if it has more."""
    if x.type.shape not in ((), (1,)):
        raise InferError(f"a scale or zero point {x.type}, not one number")
    if isinstance(x, graph.Constant):
        return graph.constant(x.load().reshape(()))
    return apply("Reshape", x, shape=()) if x.type.shape else x


def combine_scales(op: str, a: graph.Value, b: graph.Value) -> graph.Value:
    """Return a * b (Mul) or a / b (Div). Constants are combined here, in their own type: later
    they might be merged with others, in another order."""
    if isinstance(a, graph.Constant) and isinstance(b, graph.Constant):
        combine = {"Mul": np.multiply, "Div": np.divide}[op]
        return graph.constant(np.asarray(combine(a.load(), b.load())))
    return apply(op, a, b)


def zero_point(x: graph.Value | None, dtype: DType) -> graph.Value:
    """Return a zero point of one element, by default 0. Raises InferError for another type."""
    if x is None:
        return constant(0, dtype)
    if x.type.dtype != dtype:
        raise InferError(f"a zero point {x.type} of {dtype}")
    return as_scalar(x)


def dequantize_operand(n: oir.Node, operands: Operands, first: int) -> graph.Value:
    """Return the float32 values of an operand of int8 or uint8, whose scale and zero point follow
    it."""
    x, scale = require_operands(n, operands, first, first + 1)
    zero = zero_point(optional_operand(operands, first + 2), require_int8(x))
    return apply("DequantizeLinear", x, as_scalar(scale), zero)


def quantize_result(
    n: oir.Node, operands: Operands, first: int, x: graph.Value, dtype: DType
) -> graph.Value:
    """Return x, quantized by the operands at `first`: a scale and a zero point."""
    (scale,) = require_operands(n, operands, first)
    zero = zero_point(optional_operand(operands, first + 1), dtype)
    return apply("QuantizeLinear", x, as_scalar(scale), zero)


def dequantized_product(
    x: graph.Value,
    weights: graph.Value,
    x_scale: graph.Value,
    weight_scale: graph.Value,
    x_zero: graph.Value | None,
    weight_zero: graph.Value | None,
    bias: graph.Value | None,
) -> graph.Value:
    """(x - x_zero) (weights - weight_zero) * (x_scale * weight_scale) + bias: the product in int32,
    the rest in float32. Scales, zero points and the bias of the weights may be those of columns.
    """
    require_int8(x)
    require_int8(weights)
    x_zero = x_zero if x_zero is None else as_scalar(x_zero)
    if weight_zero is not None and weight_zero.type.shape == (1,):
        weight_zero = as_scalar(weight_zero)
    if x_zero is None and weight_zero is not None:
        x_zero = constant(0, require_int8(x))
    product = apply("MatMulInteger", x, weights, x_zero, weight_zero)
    scale = combine_scales("Mul", cast(as_scalar(x_scale), F32), cast(weight_scale, F32))
    out = apply("Mul", cast(product, F32), scale)
    out = out if bias is None else apply("Add", out, cast(bias, F32))
    if out.type.shape != product.type.shape:
        raise InferError(f"a scale {weight_scale.type} for a product {product.type}")
    return out


def known_attributes(n: oir.Node, name: str) -> dict[str, Attr]:
    """Return the attributes of a node that ONNX's operator `name` has, too."""
    own = OPS[name].attrs
    return {key: attribute_value(key, a) for key, a in n.attributes.items() if key in own}


def channels_first(x: graph.Value) -> graph.Value:
    """Return an image whose channels are the last axis as (batch, channels, ...)."""
    rank = len(shape_of(x, 3, 4, 5))
    return apply("Transpose", x, perm=(0, rank - 1, *range(1, rank - 1)))


def channels_last(x: graph.Value) -> graph.Value:
    """Return an image (batch, channels, ...) with the channels as the last axis."""
    rank = len(shape_of(x, 3, 4, 5))
    return apply("Transpose", x, perm=(0, *range(2, rank), 1))
