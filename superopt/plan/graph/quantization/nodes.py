"""Nodes of quantized graphs: builders, and what a DequantizeLinear reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from superopt.ir import graph as ir_graph
from superopt.ir.op import Attr
from superopt.ops import OPS
from superopt.te.expr.dtype import F32, I8, U8, to_numpy

Value = ir_graph.Value


@dataclass(frozen=True, slots=True)
class Quantized:
    """The operands of a DequantizeLinear without blocks. axis: of the scale, if it has one."""

    x: Value
    scale: Value
    zero: Value | None
    axis: int | None


def match_dequantized(v: Value | None) -> Quantized | None:
    """Return the operands of a DequantizeLinear of 8-bit integers to float32; None for another
    value."""
    n = None if v is None else ir_graph.producer(v)
    if n is None or n.op.name != "DequantizeLinear" or n.op.domain or n.attr("block_size"):
        return None
    x, scale, zero = (*n.inputs, None)[:3]
    if x is None or scale is None or x.type.dtype not in (I8, U8) or scale.type.dtype != F32:
        return None
    axis = n.attr("axis")
    assert isinstance(axis, int)
    single = scale.type.shape in ((), (1,))
    return Quantized(x, scale, zero, None if single else axis % len(x.type.shape or (1,)))


def make_node(op: str, inputs: Sequence[Value | None], **attrs: Attr) -> ir_graph.Node:
    """Return a node of an operator of ONNX."""
    return ir_graph.node(OPS[op], inputs, **attrs)


def make_scalar(value: float) -> ir_graph.Constant:
    """Return a number as a constant of float32."""
    return ir_graph.constant(np.array(value, np.float32))


def make_zero(v: Quantized) -> Value:
    """Return the zero point 0."""
    assert v.x.type.dtype is not None
    return ir_graph.constant(np.zeros((), to_numpy(v.x.type.dtype)))


def along_axis(v: Value, after: int) -> Value:
    """Return numbers along an axis so that they broadcast over so many axes behind it."""
    shape = v.type.shape
    if not after or shape is None or len(shape) != 1 or shape == (1,):
        return v
    return make_node("Reshape", [v], shape=(*shape, *(1,) * after))


def is_zero(v: Value) -> bool:
    """True for a constant of zeros."""
    return isinstance(v, ir_graph.Constant) and not v.load().any()


def constant_number(v: Value) -> float | None:
    """Return the element of a constant of one element; None for another value."""
    if not isinstance(v, ir_graph.Constant) or v.type.shape not in ((), (1,)):
        return None
    return float(v.load().reshape(()))
