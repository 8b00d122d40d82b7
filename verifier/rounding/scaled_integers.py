"""Operands that hold scaled integers, and the integers in one form."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from superopt.ir import graph as ir_graph
from superopt.ir.constant_values import is_constant
from superopt.ir.evaluate import evaluate
from superopt.te.eval.domain import Reals
from superopt.te.expr.dtype import F32, F64, to_numpy
from superopt.verifier.elements.intervals import INTEGER_TYPES
from superopt.verifier.rounding.quantized_results import number_of

Value = ir_graph.Value


@dataclass(frozen=True, slots=True)
class ScaledIntegers:
    """What an operand of a product holds: (x - zero) * scale. axis: of scale and zero; None if they
    are single numbers. scale: None for 1."""

    x: Value
    zero: Value
    scale: Value | None
    axis: int | None


def whole_integers(x: Value) -> ScaledIntegers:
    """Return integers as they are."""
    return ScaledIntegers(x, zero_of(x), None, None)


def real_constant(v: Value) -> np.ndarray:
    """Return the elements of a constant, computed in float64."""
    (array,) = evaluate(ir_graph.Graph((), (v,)), {}, Reals(F64))
    return np.asarray(array, np.float64)


def match_integers(v: Value | None) -> ScaledIntegers | None:
    """Return what a DequantizeLinear, a cast of integers to float32, or their difference from a
    zero point hold; None for other values."""
    n = None if v is None else ir_graph.producer(v)
    if n is None or v is None or n.op.domain or v.type.dtype != F32:
        return None
    match n.op.name:
        case "DequantizeLinear":
            return _match_dequantized(n)
        case "Cast":
            x = n.inputs[0]
            if x is None or x.type.dtype not in INTEGER_TYPES:
                return None
            return ScaledIntegers(x, zero_of(x), None, None)
        case "Sub":
            a, z = (match_integers(i) for i in n.inputs)
            if a is None or z is None or z.x.type.shape != () or not is_constant(z.x, {}):
                return None
            plain = number_of(a.zero) == 0 and number_of(z.zero) == 0
            return (
                ScaledIntegers(a.x, z.x, None, None)
                if plain and a.scale is z.scale is None
                else None
            )
        case _:
            return None


def _match_dequantized(n: ir_graph.Node) -> ScaledIntegers | None:
    x, scale, zero = (*n.inputs, None)[:3]
    if x is None or scale is None or x.type.dtype not in INTEGER_TYPES or n.attr("block_size"):
        return None
    if scale.type.dtype != F32 or not is_constant(scale, {}):
        return None
    if zero is not None and not is_constant(zero, {}):
        return None
    axis, rank = n.attr("axis"), len(x.type.shape or ())
    assert isinstance(axis, int)
    single = scale.type.shape in ((), (1,))
    return ScaledIntegers(
        x, zero_of(x) if zero is None else zero, scale, None if single else axis % max(rank, 1)
    )


def zero_of(x: Value) -> Value:
    """Return the zero point 0 of a value's type."""
    assert x.type.dtype is not None
    return ir_graph.constant(np.zeros((), to_numpy(x.type.dtype)))


def canonical_integers(v: Value) -> Value:
    """Return an integer value with the zero points of a product as single numbers, so that equal
    products are one value."""
    n = ir_graph.producer(v)
    if n is None or n.op.name not in ("MatMulInteger", "ConvInteger"):
        return v
    x, w, *zeros = (*n.inputs, None, None)[:4]
    assert x is not None
    assert w is not None
    again = [
        zero_of(q) if z is None else single_zero(z) for q, z in zip((x, w), zeros, strict=True)
    ]
    if is_constant(w, {}):  # by content, as tools copy and pad weights
        (array,) = evaluate(ir_graph.Graph((), (w,)), {})
        w = ir_graph.constant(np.asarray(array))
    return ir_graph.node(n.op, [x, w, *again], **dict(n.attrs))


def single_zero(zero: Value) -> Value:
    """Return zero points as one number if they are equal."""
    if not is_constant(zero, {}):
        return zero
    (array,) = evaluate(ir_graph.Graph((), (zero,)), {})
    uniform = array.size > 0 and (array == array.flat[0]).all()
    return ir_graph.constant(np.asarray(array.flat[0] if uniform else array))
