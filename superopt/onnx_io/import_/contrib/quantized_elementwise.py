"""Operators of com.microsoft on 8-bit integers: dequantized, computed in float32, quantized.

ONNX Runtime computes some of them from tables or in another order, within one step of these.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as oir

from superopt.ir import graph
from superopt.ir.op import InferError
from superopt.onnx_io.import_.contrib.build import (
    KnownSize,
    Operands,
    optional_operand,
    require_operands,
)
from superopt.onnx_io.import_.contrib.quantization import (
    as_scalar,
    channels_first,
    channels_last,
    combine_scales,
    dequantize_operand,
    known_attributes,
    quantize_result,
    require_int8,
    zero_point,
)
from superopt.onnx_io.import_.ml.build import apply, cast, constant, integer_attribute
from superopt.ops.shared.broadcasting import normalize_axis
from superopt.te.expr.dtype import F32
from superopt.te.expr.tensor import product

EACH_AXIS_SINCE = 13  # opset of a Softmax along one axis; before it flattens from the axis on


def _result_type(n: oir.Node, operands: Operands) -> graph.Value:
    return require_operands(n, operands, 0)[0]


def quantized_add(n: oir.Node, operands: Operands, known: KnownSize) -> Sequence[graph.Value]:
    """(a_scale * (a - a_zero) + b_scale * (b - b_zero)) / c_scale + c_zero. Operands: a, a_scale,
    a_zero, b, b_scale, b_zero, c_scale, c_zero."""
    a, b = dequantize_operand(n, operands, 0), dequantize_operand(n, operands, 3)
    dtype = require_int8(_result_type(n, operands))
    return (quantize_result(n, operands, 6, apply("Add", a, b), dtype),)


def quantized_mul(n: oir.Node, operands: Operands, known: KnownSize) -> Sequence[graph.Value]:
    """(a - a_zero) * (b - b_zero) * (a_scale * b_scale / c_scale) + c_zero. The integers are
    multiplied first: a mask times the least float overflows where it is scaled."""
    a, a_scale, b, b_scale, c_scale = require_operands(n, operands, 0, 1, 3, 4, 6)
    parts = []
    for x, at in ((a, 2), (b, 5)):
        zero = zero_point(optional_operand(operands, at), require_int8(x))
        parts.append(apply("Sub", cast(x, F32), cast(zero, F32)))
    scales = [as_scalar(s) for s in (a_scale, b_scale, c_scale)]
    scale = combine_scales("Div", combine_scales("Mul", *scales[:2]), scales[2])
    whole = apply("Mul", apply("Mul", *parts), scale)
    c_zero = zero_point(optional_operand(operands, 7), require_int8(_result_type(n, operands)))
    return (apply("QuantizeLinear", whole, constant(1, F32), c_zero),)


def quantized_unary(n: oir.Node, operands: Operands, known: KnownSize) -> Sequence[graph.Value]:
    """An activation, a global pool or a mean. Operands: x, x_scale, x_zero, y_scale, y_zero."""
    name = n.op_type.removeprefix("QLinear")
    x = dequantize_operand(n, operands, 0)
    last = name.endswith("Pool") and integer_attribute(n, "channels_last", 0)
    y = apply(name, channels_first(x) if last else x, **known_attributes(n, name))
    dtype = require_int8(_result_type(n, operands))
    return (quantize_result(n, operands, 3, channels_last(y) if last else y, dtype),)


def quantized_softmax(n: oir.Node, operands: Operands, known: KnownSize) -> Sequence[graph.Value]:
    """Softmax along an axis, or along all axes from it on as before opset 13."""
    x = dequantize_operand(n, operands, 0)
    each = integer_attribute(n, "opset", 0) >= EACH_AXIS_SINCE
    shape = x.type.shape
    if shape is None:
        raise InferError(f"QLinearSoftmax of {x.type}")
    axis = normalize_axis(integer_attribute(n, "axis", -1 if each else 1), len(shape))
    if each:
        y = apply("Softmax", x, axis=axis)
    else:
        rows = apply("Reshape", x, shape=(*shape[:axis], product(shape[axis:])))
        y = apply("Reshape", apply("Softmax", rows, axis=-1), shape=shape)
    return (quantize_result(n, operands, 3, y, require_int8(_result_type(n, operands))),)


def quantized_concat(n: oir.Node, operands: Operands, known: KnownSize) -> Sequence[graph.Value]:
    """Operands: y_scale, y_zero, then x, x_scale and x_zero of each part."""
    if len(operands) % 3 != 2:
        raise InferError(f"QLinearConcat of {len(operands)} operands")
    firsts = range(2, len(operands), 3)
    parts = [dequantize_operand(n, operands, k) for k in firsts]
    whole = apply("Concat", *parts, axis=integer_attribute(n, "axis", 0))
    (x,) = require_operands(n, operands, 2)
    return (quantize_result(n, operands, 0, whole, require_int8(x)),)


def quantized_where(n: oir.Node, operands: Operands, known: KnownSize) -> Sequence[graph.Value]:
    """Operands: condition, x, x_scale, x_zero, y, y_scale, y_zero, z_scale, z_zero."""
    condition, x = require_operands(n, operands, 0, 1)
    parts = [dequantize_operand(n, operands, k) for k in (1, 4)]
    return (quantize_result(n, operands, 7, apply("Where", condition, *parts), require_int8(x)),)
