"""Products of 8-bit integers by weights that are no constants, as products of float32.

    MatMulInteger(x, w, z, v)  =>  sum of Cast(MatMul(x'[k], w'[k])) over blocks k of terms

x' = Cast(x) - z, w' = Cast(w) - v in float32. Factors are at most 255, so that sums of up to 258
products are integers below 2^24, which float32 holds: the result is the same, bit for bit. A kernel
of float32 takes half of the time of one of integers whose weights are not packed ahead of time.
"""

from __future__ import annotations

import numpy as np

from superopt.ir import graph as ir_graph
from superopt.ir.constant_values import is_constant
from superopt.ir.substitute import replace_all
from superopt.ops import OPS
from superopt.te.expr.dtype import F32, I8, I32, U8

Value = ir_graph.Value
SINGLE = ((), (1,))  # shapes
EXACT_TERMS = 256  # at most (2^24 - 1) / 255^2


def lower_variable_products(graph: ir_graph.Graph) -> ir_graph.Graph:
    """Return the graph with products of float32 for MatMulInteger and QLinearMatMul of two variable
    matrices."""
    change: dict[Value, Value] = {}
    for n in ir_graph.nodes(graph):
        made = None
        if n.op.name == "MatMulInteger" and not n.op.domain:
            made = _float_product(*(*n.inputs, None, None)[:4])
        elif n.op.name == "QLinearMatMul" and not n.op.domain:
            made = _requantized_product(n)
        if made is not None:
            change[n] = made
    return replace_all(graph, change) if change else graph


def _requantized_product(n: ir_graph.Node) -> Value | None:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = n.inputs
    scales = [v for v in (x_scale, w_scale, y_scale) if v is not None]
    if (
        x_scale is None
        or x_scale.type.shape not in SINGLE
        or any(v.type.dtype != F32 for v in scales)
    ):
        return None
    product = _float_product(x, w, x_zero, w_zero)
    if product is None:
        return None
    scale = _node("Div", _node("Mul", *scales[:2]), scales[2])
    one = ir_graph.constant(np.ones((), np.float32))
    assert y_zero is not None
    return _node("QuantizeLinear", _node("Mul", _node("Cast", product, to=F32), scale), one, y_zero)


def _float_product(
    x: Value | None, w: Value | None, x_zero: Value | None, w_zero: Value | None
) -> Value | None:
    assert x is not None
    assert w is not None
    terms = (x.type.shape or ())[-1:]
    if is_constant(w, {}) or is_constant(x, {}) or not terms or not isinstance(terms[0], int):
        return None
    if not {x.type.dtype, w.type.dtype} <= {I8, U8} or len(w.type.shape or ()) < 2:
        return None
    if x_zero is not None and x_zero.type.shape not in SINGLE:
        return None
    a, b = _difference(x, x_zero), _difference(w, w_zero)
    starts = range(0, terms[0], EXACT_TERMS)
    parts = [_product(a, b, k, min(k + EXACT_TERMS, terms[0]), terms[0]) for k in starts]
    out, *rest = parts
    for part in rest:
        out = _node("Add", out, part)
    return out


def _difference(x: Value, zero: Value | None) -> Value:
    """Return x - zero in float32."""
    wide = _node("Cast", x, to=F32)
    return wide if zero is None else _node("Sub", wide, _node("Cast", zero, to=F32))


def _product(a: Value, b: Value, start: int, end: int, terms: int) -> Value:
    """Return the product over some of the terms, in int32."""
    if end - start < terms:
        a, b = (
            _node("Slice", v, starts=(start,), ends=(end,), axes=(axis,), steps=(1,))
            for v, axis in ((a, -1), (b, -2))
        )
    return _node("Cast", _node("MatMul", a, b), to=I32)


def _node(op: str, *inputs: Value, **attrs: object) -> ir_graph.Node:
    return ir_graph.node(OPS[op], inputs, **attrs)  # type: ignore[arg-type]
