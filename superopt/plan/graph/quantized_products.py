"""Products of dequantized integers, as products of the integers.

    MatMul(DequantizeLinear(x, s, z), DequantizeLinear(w, t, v))
        => Mul(Cast(MatMulInteger(x, w, z, v)), Mul(s, t))

and likewise for Gemm and Conv, with a bias added. Both sides are equal over the real numbers; the
right one's sums are exact. It applies where w is a constant, scales and zero points are those of
the whole tensor or of columns, and convolutions have one group: others are products of floats.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from superopt.ir import graph as ir_graph
from superopt.ir.constant_values import is_constant
from superopt.ir.substitute import replace_all
from superopt.ops import OPS
from superopt.te.expr.dtype import F32, I8, U8, to_numpy

Value = ir_graph.Value


@dataclass(frozen=True, slots=True)
class _Quantized:
    """The operands of a DequantizeLinear without blocks. axis: of the scale, if it has one."""

    x: Value
    scale: Value
    zero: Value | None
    axis: int | None


def lower_quantized_products(graph: ir_graph.Graph) -> ir_graph.Graph:
    """Return the graph with products of integers for those of dequantized ones."""
    change: dict[Value, Value] = {}
    for n in ir_graph.nodes(graph):
        made = _integer_product(n) if n.op.name in ("MatMul", "Gemm", "Conv") else None
        if made is not None:
            change[n] = made
    return replace_all(graph, change) if change else graph


def _integer_product(n: ir_graph.Node) -> Value | None:
    if n.op.domain or n.type.dtype != F32 or n.inputs[0] is None or n.inputs[1] is None:
        return None
    x, w = map(_match_quantized, n.inputs[:2])
    if x is None or w is None or x.axis is not None or not is_constant(w.x, {}):
        return None
    if w.zero is not None and not is_constant(w.zero, {}):
        return None
    bias = n.inputs[2] if len(n.inputs) > 2 else None
    columns = _columns_axis(n)
    if columns is None or w.axis not in (None, columns):
        return None
    zeros = [v.zero if v.zero is not None else _zero(v) for v in (x, w)]
    if n.op.name == "Conv":
        product = _node("ConvInteger", [x.x, w.x, *zeros], **dict(n.attrs))
        tail = (1,) * (len(n.type.shape or ()) - 2)
    else:
        weights = w.x if columns == 1 else _node("Transpose", [w.x], perm=(1, 0))
        product, tail = _node("MatMulInteger", [x.x, weights, *zeros]), ()
    scale = _node("Mul", [x.scale, w.scale])
    out = _node("Mul", [_node("Cast", [product], to=F32), _along_columns(scale, tail)])
    return out if bias is None else _node("Add", [out, _along_columns(bias, tail)])


def _node(op: str, inputs: list[Value | None], **attrs: object) -> ir_graph.Node:
    return ir_graph.node(OPS[op], inputs, **attrs)  # type: ignore[arg-type]


def _along_columns(v: Value, tail: tuple[int, ...]) -> Value:
    """Return numbers of channels so that they broadcast over the axes behind them."""
    shape = v.type.shape
    if not tail or shape is None or len(shape) != 1 or shape == (1,):
        return v
    return _node("Reshape", [v], shape=(*shape, *tail))


def _zero(v: _Quantized) -> Value:
    assert v.x.type.dtype is not None
    return ir_graph.constant(np.zeros((), to_numpy(v.x.type.dtype)))


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
            return 0 if n.attr("group") == 1 else None


def _match_quantized(v: Value | None) -> _Quantized | None:
    n = None if v is None else ir_graph.producer(v)
    if n is None or n.op.name != "DequantizeLinear" or n.op.domain or n.attr("block_size"):
        return None
    x, scale, zero = (*n.inputs, None)[:3]
    if x is None or scale is None or x.type.dtype not in (I8, U8) or scale.type.dtype != F32:
        return None
    axis = n.attr("axis")
    assert isinstance(axis, int)
    single = scale.type.shape in ((), (1,))
    return _Quantized(x, scale, zero, None if single else axis % len(x.type.shape or (1,)))
