"""Products of dequantized integers, as products of the integers.

    MatMul(DequantizeLinear(x, s, z), DequantizeLinear(w, t, v))
        => Mul(Cast(MatMulInteger(x, w, z, v)), Mul(s, t))

and likewise for Gemm and Conv, with a bias added. Both sides are equal over the real numbers; the
right one's sums are exact. It applies where w is a constant, and scales and zero points are those
of the whole tensor or of columns. Convolutions of groups become those of the same integers in
float32 where all sums are below 2^24, so that they are exact:

    Mul(Conv(Sub(Cast(x), Cast(z)), Sub(Cast(w), Cast(v))), Mul(s, t))
"""

from __future__ import annotations

from math import prod

from superopt.ir import graph as ir_graph
from superopt.ir.constant_values import is_constant
from superopt.ir.substitute import replace_all
from superopt.plan.graph.quantization.nodes import (
    Quantized,
    Value,
    along_axis,
    is_zero,
    make_node,
    make_zero,
    match_dequantized,
)
from superopt.te.expr.dtype import F32

EXACT_SUM = 1 << 24  # float32 holds the integers up to it
MAX_DIFFERENCE = 255  # of an 8-bit integer and a zero point


def lower_quantized_products(graph: ir_graph.Graph) -> ir_graph.Graph:
    """Return the graph with products of integers for those of dequantized ones."""
    change: dict[Value, Value] = {}
    for n in ir_graph.nodes(graph):
        made = _integer_product(n) if n.op.name in ("MatMul", "Gemm", "Conv") else None
        if made is not None:
            change[n] = made
    return replace_all(graph, change) if change else graph


def _integer_product(n: ir_graph.Node) -> Value | None:
    if n.op.domain or n.type.dtype != F32:
        return None
    x, w = map(match_dequantized, n.inputs[:2])
    if x is None or w is None or x.axis is not None or not is_constant(w.x, {}):
        return None
    if w.zero is not None and not is_constant(w.zero, {}):
        return None
    bias = n.inputs[2] if len(n.inputs) > 2 else None
    columns = _columns_axis(n)
    if columns is None or w.axis not in (None, columns):
        return None
    is_convolution = n.op.name == "Conv"
    after = len(n.type.shape or ()) - 2 if is_convolution else 0
    if is_convolution and n.attr("group") != 1:
        if not _has_exact_sums(w.x):
            return None
        whole: Value = make_node("Conv", [_whole_floats(x), _whole_floats(w)], **dict(n.attrs))
    else:
        zeros = [v.zero if v.zero is not None else make_zero(v) for v in (x, w)]
        if is_convolution:
            product = make_node("ConvInteger", [x.x, w.x, *zeros], **dict(n.attrs))
        else:
            weights = w.x if columns == 1 else make_node("Transpose", [w.x], perm=(1, 0))
            product = make_node("MatMulInteger", [x.x, weights, *zeros])
        whole = make_node("Cast", [product], to=F32)
    out = make_node("Mul", [whole, along_axis(make_node("Mul", [x.scale, w.scale]), after)])
    return out if bias is None else make_node("Add", [out, along_axis(bias, after)])


def _has_exact_sums(weights: Value) -> bool:
    """True if float32 holds all sums of products of integers with a channel's weights."""
    terms = prod(n for n in (weights.type.shape or ())[1:] if isinstance(n, int))
    return terms * MAX_DIFFERENCE * MAX_DIFFERENCE < EXACT_SUM


def _whole_floats(v: Quantized) -> Value:
    """Return the integers less their zero point as float32."""
    whole: Value = make_node("Cast", [v.x], to=F32)
    if v.zero is None or is_zero(v.zero):
        return whole
    zero: Value = make_node("Cast", [v.zero], to=F32)
    if v.axis is not None:
        zero = along_axis(zero, len(v.x.type.shape or ()) - 1 - v.axis)
    return make_node("Sub", [whole, zero])


def _columns_axis(n: ir_graph.Node) -> int | None:
    """Return the axis of the weights whose elements are columns of the product, or channels; None
    for a product that has no such form."""
    w = n.inputs[1]
    assert w is not None
    rank = len(w.type.shape or ())
    match n.op.name:
        case "MatMul":
            x = n.inputs[0]
            return 1 if rank == 2 and x is not None and len(x.type.shape or ()) > 1 else None
        case "Gemm":
            plain = n.attr("alpha") == 1 and n.attr("beta") == 1 and not n.attr("transA")
            return None if not plain else 0 if n.attr("transB") else 1
        case _:
            return 0
