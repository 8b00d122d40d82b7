"""Values of graphs as sums of scaled integers: sum(factor * f32(integer)) + offset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from superopt.ir import graph as ir_graph
from superopt.ir.constant_values import is_constant
from superopt.plan.graph.quantization.nodes import (
    Value,
    along_axis,
    is_zero,
    make_node,
    make_scalar,
    match_dequantized,
)
from superopt.te.expr.dtype import F32, I8, I32, U8

MAX_DEPTH = 32  # operators
AVERAGE_OPS = ("AveragePool", "GlobalAveragePool")


@dataclass(frozen=True, slots=True)
class ScaledSum:
    """The sum of terms, as integers or averages of integers in float32 and their factors, None for
    1, and of an offset, None for 0. Factors and offsets are constants."""

    terms: tuple[tuple[Value, Value | None], ...]
    offset: Value | None = None


def match_sum(
    v: Value | None, counts: Mapping[Value, int], depth: int = MAX_DEPTH
) -> ScaledSum | None:
    """Return a value as a sum, of no more operators than `depth` one after the other; None for
    another one. What others read, too, is not computed again, unless it is dequantized."""
    if v is None or not depth:
        return None
    if is_constant(v, {}):
        return ScaledSum((), v)
    n = ir_graph.producer(v)
    if n is None or n.op.domain or v.type.dtype != F32:
        return None
    if (found := match_dequantized(v)) is not None:
        return _dequantized_sum(v, found.x, found.scale, found.zero, found.axis)
    if counts.get(v, 0) > 1:
        return None
    if n.op.name == "Cast":
        is_integer = n.inputs[0] is not None and n.inputs[0].type.dtype in (I8, U8, I32)
        return ScaledSum(((v, None),)) if is_integer else None
    if _is_exact_convolution(n):
        return ScaledSum(((v, None),))
    if n.op.name in AVERAGE_OPS:
        return _match_average(n)
    if n.op.name == "BatchNormalization" and len(n.types) == 1:
        return _match_batch_normalization(n, counts, depth)
    if n.op.name in ("Add", "Sub", "Mul", "Div"):
        return _match_arithmetic(n, counts, depth)
    return None


def _match_arithmetic(
    n: ir_graph.Node, counts: Mapping[Value, int], depth: int
) -> ScaledSum | None:
    left, right = (match_sum(v, counts, depth - 1) for v in n.inputs)
    if left is None or right is None:
        return None
    if n.op.name in ("Mul", "Div"):
        if n.op.name == "Mul" and right.terms:
            left, right = right, left
        by = None if right.terms else right.offset
        return None if by is None else _scaled_sum(left, n.op.name, by)
    if n.op.name == "Sub":
        right = _scaled_sum(right, "Mul", make_scalar(-1.0))
    offsets = [o for o in (left.offset, right.offset) if o is not None]
    offset = make_node("Add", offsets) if len(offsets) == 2 else (*offsets, None)[0]
    return ScaledSum((*left.terms, *right.terms), offset)


def _match_batch_normalization(
    n: ir_graph.Node, counts: Mapping[Value, int], depth: int
) -> ScaledSum | None:
    x, *known = n.inputs
    total, epsilon = match_sum(x, counts, depth - 1), n.attr("epsilon")
    given = [v for v in known if v is not None and is_constant(v, {})]
    if total is None or len(given) < 4 or not isinstance(epsilon, float):
        return None
    after = len(n.type.shape or ()) - 2
    scale, bias, mean, variance = (along_axis(v, after) for v in given)
    spread = make_node("Sqrt", [make_node("Add", [variance, make_scalar(float(epsilon))])])
    factor = make_node("Div", [scale, spread])
    scaled = _scaled_sum(total, "Mul", factor)
    shift = make_node("Sub", [bias, make_node("Mul", [mean, factor])])
    offset = shift if scaled.offset is None else make_node("Add", [scaled.offset, shift])
    return ScaledSum(scaled.terms, offset)


def _match_average(n: ir_graph.Node) -> ScaledSum | None:
    """Return the average of dequantized integers as the scaled one of the integers."""
    found = match_dequantized(n.inputs[0])
    if found is None or found.axis is not None:
        return None
    is_padded = bool(n.attr("count_include_pad")) if n.op.name == "AveragePool" else False
    if is_padded and found.zero is not None and not is_zero(found.zero):
        return None  # zeros beyond the edge are no integers of zero
    whole = make_node(n.op.name, [make_node("Cast", [found.x], to=F32)], **dict(n.attrs))
    return _shifted_term(whole, found.scale, found.zero, 0)


def _is_exact_convolution(n: ir_graph.Node) -> bool:
    """True for a convolution of integers in float32 (plan/graph/quantization/products.py)."""
    if n.op.name != "Conv" or n.attr("group") == 1 or len(n.inputs) > 2:
        return False
    x = ir_graph.producer(n.inputs[0]) if n.inputs[0] is not None else None
    if x is not None and x.op.name == "Sub" and x.inputs[0] is not None:
        x = ir_graph.producer(x.inputs[0])
    if x is None or x.op.name != "Cast" or x.inputs[0] is None:
        return False
    w = n.inputs[1]
    return x.inputs[0].type.dtype in (I8, U8) and w is not None and is_constant(w, {})


def _scaled_sum(x: ScaledSum, op: str, by: Value) -> ScaledSum:
    terms = []
    for leaf, factor in x.terms:
        one = make_scalar(1.0) if factor is None else factor
        terms.append((leaf, make_node(op, [one, by])))
    offset = None if x.offset is None else make_node(op, [x.offset, by])
    return ScaledSum(tuple(terms), offset)


def _dequantized_sum(
    v: Value, x: Value, scale: Value, zero: Value | None, axis: int | None
) -> ScaledSum | None:
    if not is_constant(scale, {}) or (zero is not None and not is_constant(zero, {})):
        return None
    after = 0 if axis is None else len(v.type.shape or ()) - 1 - axis
    scale = along_axis(scale, after)
    return _shifted_term(make_node("Cast", [x], to=F32), scale, zero, after)


def _shifted_term(x: Value, scale: Value, zero: Value | None, after: int) -> ScaledSum | None:
    """Return (x - zero) * scale; None if these are no constants."""
    if not is_constant(scale, {}) or (zero is not None and not is_constant(zero, {})):
        return None
    if zero is None or is_zero(zero):
        return ScaledSum(((x, scale),))
    whole = along_axis(make_node("Cast", [zero], to=F32), after)
    offset = make_node("Mul", [make_node("Mul", [whole, scale]), make_scalar(-1.0)])
    return ScaledSum(((x, scale),), offset)
