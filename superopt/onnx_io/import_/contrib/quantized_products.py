"""Products of quantized operands of com.microsoft: exact integer products, then scales in float32,
in the order in which ONNX Runtime multiplies them."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as oir

from superopt.ir import graph
from superopt.ir.op import InferError
from superopt.onnx_io.import_.contrib.build import (
    KnownSize,
    Operands,
    add,
    as_i64,
    attention_scale,
    attention_scores,
    head_count,
    hide,
    join_heads,
    optional_operand,
    positions,
    reject_attributes,
    require_operands,
    shape_of,
    split_heads,
    static_size,
    unsqueeze,
)
from superopt.onnx_io.import_.contrib.multi_head import (
    MASK_FILTER_VALUE,
    causal_mask,
    least_finite,
    visible_keys,
)
from superopt.onnx_io.import_.contrib.quantization import (
    as_scalar,
    channels_first,
    channels_last,
    combine_scales,
    dequantized_product,
    known_attributes,
    require_int8,
    zero_point,
)
from superopt.onnx_io.import_.ml.build import (
    apply,
    cast,
    constant,
    float_attribute,
    integer_attribute,
    scalar_like,
)
from superopt.ops import OPS
from superopt.te.expr.dtype import F32, I32
from superopt.te.expr.tensor import Dim


def matmul_integer_to_float(
    n: oir.Node, operands: Operands, known: KnownSize
) -> Sequence[graph.Value]:
    """(a - a_zero) (b - b_zero) * (a_scale * b_scale) + bias.

    Operands: a, b, a_scale, b_scale, a_zero_point, b_zero_point, bias.
    """
    a, b, a_scale, b_scale = require_operands(n, operands, 0, 1, 2, 3)
    zeros = optional_operand(operands, 4), optional_operand(operands, 5)
    out = dequantized_product(a, b, a_scale, b_scale, *zeros, optional_operand(operands, 6))
    assert a_scale.type.dtype is not None
    return (cast(out, a_scale.type.dtype),)


def dynamic_quantize_matmul(
    n: oir.Node, operands: Operands, known: KnownSize
) -> Sequence[graph.Value]:
    """MatMulIntegerToFloat of a that is quantized by DynamicQuantizeLinear.

    Operands: a, b, b_scale, b_zero_point, bias.
    """
    a, b, b_scale = require_operands(n, operands, 0, 1, 2)
    q, scale, zero = graph.results(graph.node(OPS["DynamicQuantizeLinear"], [a]))
    b_zero, bias = optional_operand(operands, 3), optional_operand(operands, 4)
    return (dequantized_product(q, b, scale, b_scale, zero, b_zero, bias),)


def quantized_gemm(n: oir.Node, operands: Operands, known: KnownSize) -> Sequence[graph.Value]:
    """((a - a_zero) (b - b_zero) + c) * (alpha * a_scale * b_scale / y_scale), rounded, plus
    y_zero; float32 without y_scale.

    Operands: a, a_scale, a_zero_point, b, b_scale, b_zero_point, c, y_scale, y_zero_point.
    """
    a, a_scale, a_zero, b, b_scale, b_zero = require_operands(n, operands, *range(6))
    c, y_scale, y_zero = (optional_operand(operands, k) for k in (6, 7, 8))
    for x in (a, b):
        shape_of(x, 2)
        require_int8(x)
    if (y_scale is None) != (y_zero is None):
        raise InferError("QGemm with one of y_scale and y_zero_point")
    a, b = (
        apply("Transpose", x, perm=(1, 0)) if integer_attribute(n, name, 0) else x
        for x, name in ((a, "transA"), (b, "transB"))
    )
    b_zero = as_scalar(b_zero) if b_zero.type.shape == (1,) else b_zero
    total = apply("MatMulInteger", a, b, as_scalar(a_zero), b_zero)
    shape = total.type.shape
    if c is not None:
        if c.type.dtype != I32:
            raise InferError(f"QGemm with c {c.type}, not of int32")
        total = apply("Add", total, c)
    scale = as_scalar(a_scale)
    alpha = float_attribute(n, "alpha", 1.0)
    scale = scale if alpha == 1 else combine_scales("Mul", constant(alpha, F32), scale)
    scale = combine_scales("Mul", scale, b_scale)
    scale = scale if y_scale is None else combine_scales("Div", scale, as_scalar(y_scale))
    out = apply("Mul", cast(total, F32), scale)
    if y_zero is not None:
        out = apply(
            "QuantizeLinear", out, constant(1, F32), zero_point(y_zero, require_int8(y_zero))
        )
    if out.type.shape != shape:
        raise InferError(f"QGemm: c or a scale is larger than the result of {shape}")
    return (out,)


def quantized_conv(n: oir.Node, operands: Operands, known: KnownSize) -> Sequence[graph.Value]:
    """QLinearConv, perhaps of images whose channels are the last axis."""
    attrs = known_attributes(n, "QLinearConv")
    (x,) = require_operands(n, operands, 0)
    if not integer_attribute(n, "channels_last", 0):
        return (apply("QLinearConv", *operands, **attrs),)
    first = channels_first(x)
    return (channels_last(apply("QLinearConv", first, *operands[1:], **attrs)),)


def quantized_attention(n: oir.Node, operands: Operands, known: KnownSize) -> Sequence[graph.Value]:
    """MatMulIntegerToFloat for queries, keys and values, then softmax(q k^T + masks) v.

    Operands: input, weight, bias, input_scale, weight_scale, mask_index, input_zero_point,
    weight_zero_point, past.
    """
    reject_attributes(n, {"do_rotary": 0, "past_present_share_buffer": 0})
    x, weights, bias, x_scale, weight_scale = require_operands(n, operands, 0, 1, 2, 3, 4)
    mask, x_zero, weight_zero, past = (optional_operand(operands, k) for k in (5, 6, 7, 8))
    batch, length, _ = shape_of(x, 3)
    heads = head_count(n, "num_heads")
    columns = static_size(shape_of(weights, 2)[1], "the number of columns")
    if columns % (3 * heads):
        raise InferError(f"QAttention of {heads} heads with {columns} columns")
    qkv = dequantized_product(x, weights, x_scale, weight_scale, x_zero, weight_zero, bias)
    parts = graph.node(OPS["Split"], [qkv], axis=2, split=(columns // 3,) * 3)
    q, k, v = (split_heads(part, heads) for part in graph.results(parts))
    before: Dim = 0
    if past is not None:
        before = shape_of(past, 5)[3]
        old = graph.results(graph.node(OPS["Split"], [past], axis=0, split=(1, 1)))
        k, v = (
            apply("Concat", apply("Squeeze", p, axes=(0,)), own, axis=2)
            for p, own in zip(old, (k, v), strict=True)
        )
    present = apply("Concat", unsqueeze(k, 0), unsqueeze(v, 0), axis=0)
    scores = attention_scores(q, k, attention_scale(n, q))
    total = shape_of(scores, 4)[3]
    seen = None if mask is None else _visible_keys(mask, batch, total)
    if seen is not None:
        least = float_attribute(n, "mask_filter_value", MASK_FILTER_VALUE)
        filtered = apply("Where", seen, scalar_like(0.0, scores), scalar_like(least, scores))
        scores = add(scores, filtered)
    if integer_attribute(n, "unidirectional", 0) and length != 1:
        scores = hide(scores, causal_mask(length, total, before), least_finite(scores))
    y = apply("MatMul", apply("Softmax", scores, axis=-1), v)
    return join_heads(y), present


def _visible_keys(mask: graph.Value, batch: Dim, total: Dim) -> graph.Value | None:
    """Return where keys are visible, in four axes; None for a mask of one element, which has no
    effect.

    mask: as of MultiHeadAttention, or (2 * batch): the ends, then the starts.
    """
    shape = shape_of(mask, 1, 2, 3)
    if len(shape) == 2 and shape[1] == 1 and total != 1:
        return None
    if len(shape) == 1 and isinstance(batch, int) and shape == (2 * batch,):
        ends, starts = graph.results(graph.node(OPS["Split"], [mask], axis=0, split=(batch, batch)))
        first = unsqueeze(as_i64(starts), 1, 2, 3)
        behind = apply("LessOrEqual", first, positions(total))
        return apply("And", visible_keys(ends, batch, total), behind)
    if len(shape) == 1 and shape != (batch,):
        raise InferError(f"a mask {mask.type} of {batch} sequences")
    return visible_keys(mask, batch, total)
