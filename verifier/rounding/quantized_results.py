"""Quantized results of graphs, taken apart: what is rounded, in steps, and the limits.

    QuantizeLinear(Relu(x), s, z)                          x / s, limits 0 and high - z
    Cast(Cast(Round(Clip(x, a, b)), i32) + z)              x, limits a and b

Limits are whole numbers of steps: as rounding to the nearest keeps the order and whole numbers,
rint(min(max(x, a), b)) is rint(x) limited to rint(a) and rint(b).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from superopt.ir import graph as ir_graph
from superopt.ir.op import InferError
from superopt.ops import OPS
from superopt.te.expr.dtype import F32, I32, DType
from superopt.verifier.elements.intervals import INTEGER_TYPES

MAX_BITS = 16
TIE_MARGIN = 1e-6  # relative; limits this near to the middle of two steps are not rounded here
# Operators that select elements of their first operand, and that rounding commutes with.
SELECTING = frozenset(("MaxPool",))

Value = ir_graph.Value


@dataclass(frozen=True, slots=True)
class QuantizedResult:
    """zero + the quotient value / scale, rounded to the nearest and limited.

    scale: None for 1. zero: of all elements. low, high: the limits of the quotient, in whole steps.
    is_whole: True if the quotient is a whole number that is not rounded.
    """

    value: Value
    scale: Value | None
    axis: int
    zero: int
    low: int
    high: int
    dtype: DType
    is_whole: bool = False

    def in_steps(self) -> Value:
        """Return the quotient, neither rounded nor limited."""
        if self.scale is None:
            return self.value
        scale, shape = self.scale, self.value.type.shape
        assert shape is not None
        if scale.type.shape not in ((), (1,)):
            after = len(shape) - 1 - self.axis
            scale = ir_graph.node(OPS["Reshape"], [scale], shape=(-1, *(1,) * after))
        elif scale.type.shape == (1,):
            scale = ir_graph.node(OPS["Reshape"], [scale], shape=())
        return ir_graph.node(OPS["Div"], [self.value, scale])


def match_result(v: Value) -> QuantizedResult | None:
    """Return a quantized result taken apart; None for other values."""
    n = ir_graph.producer(v)
    dtype = v.type.dtype
    if n is None or n.op.domain or dtype is None or len(n.types) != 1:
        return None
    if dtype not in INTEGER_TYPES or dtype.bits > MAX_BITS:
        return None
    if n.op.name == "QuantizeLinear":
        return _match_quantize(n)
    if n.op.name == "Cast":
        return _match_rounded(n)
    if "data" in n.op.laws or n.op.name in SELECTING:
        return _match_selection(n)
    return None


def whole_result(v: Value, zero: int) -> QuantizedResult | None:
    """Return integers of few bits as what they are less a zero point; None for other values."""
    dtype, shape = v.type.dtype, v.type.shape
    if dtype is None or dtype not in INTEGER_TYPES or dtype.bits > MAX_BITS or shape is None:
        return None
    kind = INTEGER_TYPES[dtype]
    whole: Value = ir_graph.node(OPS["Cast"], [v], to=F32)
    if zero:
        whole = ir_graph.node(OPS["Sub"], [whole, ir_graph.constant(np.array(zero, np.float32))])
    return QuantizedResult(whole, None, 0, zero, kind.low - zero, kind.high - zero, dtype, True)


def _match_quantize(n: ir_graph.Node) -> QuantizedResult | None:
    x, scale, zero = (*n.inputs, None)[:3]
    if x is None or scale is None or x.type.dtype != F32 or scale.type.dtype != F32:
        return None
    if n.attr("precision") or n.attr("block_size") or not isinstance(scale, ir_graph.Constant):
        return None
    z = 0.0 if zero is None else number_of(zero)
    scales, axis, dtype = scale.load(), n.attr("axis"), n.type.dtype
    assert dtype is not None
    assert isinstance(axis, int)
    if z is None or x.type.shape is None or not (np.isfinite(scales) & (scales > 0)).all():
        return None
    kind = INTEGER_TYPES[dtype]
    low, high = kind.low - int(z), kind.high - int(z)
    found = QuantizedResult(x, scale, axis % max(len(x.type.shape), 1), int(z), low, high, dtype)
    return _with_limits(found) if scales.size == 1 else found


def _match_rounded(n: ir_graph.Node) -> QuantizedResult | None:
    """Match a cast of a rounded sum that is limited to the range of the result's type."""
    dtype = n.type.dtype
    assert dtype is not None
    whole, zero = n.inputs[0], 0.0
    p = None if whole is None else ir_graph.producer(whole)
    if p is not None and p.op.name == "Add" and whole is not None and whole.type.dtype == I32:
        given = [number_of(i) for i in p.inputs]
        if given.count(None) != 1:
            return None
        zero = next(g for g in given if g is not None)
        whole = p.inputs[given.index(None)]
        p = None if whole is None else ir_graph.producer(whole)
    if p is None or p.op.name != "Cast" or p.type.dtype != I32 or p.inputs[0] is None:
        return None
    rounded = ir_graph.producer(p.inputs[0])
    if rounded is None or rounded.op.name != "Round" or rounded.type.dtype != F32:
        return None
    x, kind = rounded.inputs[0], INTEGER_TYPES[dtype]
    assert x is not None
    least, most = kind.low - int(zero), kind.high - int(zero)
    wide = QuantizedResult(x, None, 0, int(zero), -(1 << 30), 1 << 30, dtype)
    found = _with_limits(wide)
    inside = found is not None and least <= found.low and found.high <= most
    return found if inside else None


def _match_selection(n: ir_graph.Node) -> QuantizedResult | None:
    """Match elements that are selected of a quantized result, as selected before rounding."""
    tensors = [v for v in n.inputs if v is not None and v.type.dtype == n.type.dtype]
    inner = match_result(tensors[0]) if len(tensors) == 1 and tensors[0] is n.inputs[0] else None
    if inner is None or (inner.scale is not None and inner.scale.type.shape not in ((), (1,))):
        return None
    try:
        moved = ir_graph.node(n.op, [inner.value, *n.inputs[1:]], **dict(n.attrs))
    except InferError:
        return None
    return replace(inner, value=moved) if moved.type.shape == n.type.shape else None


def _with_limits(found: QuantizedResult) -> QuantizedResult | None:
    """Return the result with the Relus and Clips before it as limits; None if a limit is near the
    middle of two steps, where rounding decides."""
    scale = 1.0 if found.scale is None else number_of(found.scale)
    assert scale is not None
    while (inner := _match_limits(found.value)) is not None:
        x, *ends = inner
        steps = [e / scale for e in ends]
        if any(np.isfinite(s) and _is_near_tie(s) for s in steps):
            return None
        least, most = (np.rint(np.clip(s, -(1 << 30), 1 << 30)) for s in steps)
        # the outer limits apply last
        low, high = (int(min(max(e, found.low), found.high)) for e in (least, most))
        found = replace(found, value=x, low=low, high=high)
    return found


def _is_near_tie(s: float) -> bool:
    return bool(abs(s - np.floor(s) - 0.5) < TIE_MARGIN * (1 + abs(s)))


def _match_limits(v: Value) -> tuple[Value, float, float] | None:
    """Return what a Relu or Clip of float32 reads, and its limits."""
    n = ir_graph.producer(v)
    if n is None or n.op.domain or v.type.dtype != F32 or not n.inputs or n.inputs[0] is None:
        return None
    if n.op.name in SELECTING and len(n.types) == 1:  # the largest of limited values, limited
        inner = _match_limits(n.inputs[0])
        if inner is None:
            return None
        return ir_graph.node(n.op, [inner[0], *n.inputs[1:]], **dict(n.attrs)), *inner[1:]
    if n.op.name == "Relu":
        return n.inputs[0], 0.0, np.inf
    if n.op.name != "Clip":
        return None
    given = [*n.inputs[1:], None, None][:2]
    ends = [
        side if e is None else number_of(e)
        for e, side in zip(given, (-np.inf, np.inf), strict=True)
    ]
    if ends[0] is None or ends[1] is None or not ends[0] <= ends[1]:
        return None
    return n.inputs[0], ends[0], ends[1]


def number_of(v: Value | None) -> float | None:
    """Return the number that all elements of a constant are; None for other values."""
    if not isinstance(v, ir_graph.Constant):
        return None
    array = np.asarray(v.load())
    if array.size == 0 or array.dtype.kind not in "iuf" or (array != array.flat[0]).any():
        return None
    return float(array.flat[0])
