"""Quantization of sums of scaled integers, with scales and offsets merged.

    QuantizeLinear(c * f32(p) + d * f32(q) + .. + b, s, z)
        => Cast(Cast(Round(Clip(c/s * f32(p) + d/s * f32(q) + .. + b/s, low - z, high - z))) + z)

p, q, .. are integers: sums of products (plan/graph/quantization/products.py) or what a
DequantizeLinear reads, whose zero point is in b. low and high are the ends of the result's type,
nearer where a Relu or Clip is before. Both sides are equal over the real numbers, but for results
within rounding of a tie, which are one step apart. Nothing but integers and constants is in the
sum, so that it is never NaN. What is moved before quantization, or cancels, is bit-exact:

    QuantizeLinear(MaxPool(x), s, z)                   => MaxPool(QuantizeLinear(x, s, z))
    QuantizeLinear(Concat(x, y), s, z)                 => Concat(QuantizeLinear(x, s, z), ..)
    QuantizeLinear(DequantizeLinear(q, s, z), s, z)    => q
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from superopt.ir import graph as ir_graph
from superopt.ir.evaluate import evaluate
from superopt.ir.substitute import replace_all
from superopt.plan.graph.quantization.channels import pad_channels
from superopt.plan.graph.quantization.nodes import (
    Value,
    constant_number,
    make_node,
    make_scalar,
    match_dequantized,
)
from superopt.plan.graph.quantization.scaled_sums import ScaledSum, match_sum
from superopt.te.expr.dtype import F32, I8, I32, U8, DType

RANGES: Mapping[DType, tuple[int, int]] = {I8: (-128, 127), U8: (0, 255)}
MAX_OFFSET = 1 << 16  # steps; float32 holds them with 8 bits of a step
MAX_TERMS = 4  # of a sum; one more costs a multiply-add, a load and a conversion


@dataclass(frozen=True, slots=True)
class _Step:
    """The numbers of a QuantizeLinear of whole tensors."""

    scale: float
    zero: int
    dtype: DType


def merge_requantization(graph: ir_graph.Graph) -> ir_graph.Graph:
    """Return the graph with quantization as above."""
    graph = _quantize_earlier(graph)
    counts = _count_readers(graph)
    change: dict[Value, Value] = {}
    wide: dict[Value, Value] = {}
    for n in ir_graph.nodes(graph):
        step = _match_step(n)
        if step is not None and (made := _merge_step(n, step, counts, wide)) is not None:
            change[n] = made
    return replace_all(graph, change) if change else graph


def _quantize_earlier(graph: ir_graph.Graph) -> ir_graph.Graph:
    """Return the graph with quantization before pools of sums of integers, and concatenations, that
    only it reads."""
    while True:
        counts, change = _count_readers(graph), dict[Value, Value]()
        for n in ir_graph.nodes(graph):
            if _match_step(n) is None:
                continue
            before = ir_graph.producer(n.inputs[0]) if n.inputs[0] is not None else None
            if before is None or len(before.types) > 1 or before.op.domain:
                continue
            if counts[before] > 1 or before.op.name not in ("MaxPool", "Concat"):
                continue
            if before.op.name == "MaxPool" and not _is_sum_of_integers(before.inputs[0], counts):
                continue
            moved = before.inputs if before.op.name == "Concat" else before.inputs[:1]
            inputs = [None if v is None else _node_like(n, [v, *n.inputs[1:]]) for v in moved]
            change[n] = _node_like(before, inputs)
        if not change:
            return graph
        graph = replace_all(graph, change)


def _count_readers(graph: ir_graph.Graph) -> dict[Value, int]:
    """Return how often values are read by nodes, or are outputs."""
    readers = ir_graph.users(graph)
    return {v: len(some) + graph.outputs.count(v) for v, some in readers.items()}


def _is_sum_of_integers(v: Value | None, counts: Mapping[Value, int]) -> bool:
    """True for what is never NaN: its quantization is the least number, but a pool keeps it."""
    while v is not None and (inner := _match_limits(v)) is not None:
        v = inner[0]
    total = match_sum(v, counts)
    return total is not None and bool(total.terms)


def _node_like(n: ir_graph.Node, inputs: Sequence[Value | None]) -> ir_graph.Node:
    return ir_graph.node(n.op, inputs, **dict(n.attrs))


def _match_step(n: ir_graph.Node) -> _Step | None:
    """Return the numbers of a quantization of a whole tensor of float32 to 8 bits; None for another
    node."""
    if n.op.name != "QuantizeLinear" or n.op.domain or n.type.dtype not in RANGES:
        return None
    x, scale, zero = (*n.inputs, None)[:3]
    if x is None or x.type.dtype != F32 or n.attr("precision") or scale is None:
        return None
    s, z = constant_number(scale), 0.0 if zero is None else constant_number(zero)
    if s is None or z is None or scale.type.dtype != F32 or not (0 < s < np.inf):
        return None
    assert n.type.dtype is not None
    return _Step(s, int(z), n.type.dtype)


def _merge_step(
    n: ir_graph.Node, step: _Step, counts: Mapping[Value, int], wide: dict[Value, Value]
) -> Value | None:
    """Return what a quantization becomes; None if it stays. wide: results with padded channels."""
    x = n.inputs[0]
    assert x is not None
    found = match_dequantized(x)
    if found is not None and found.x.type.dtype == step.dtype and found.axis is None:
        same_zero = 0.0 if found.zero is None else constant_number(found.zero)
        if constant_number(found.scale) == step.scale and same_zero == step.zero:
            return found.x
    low, high = (float(end - step.zero) for end in RANGES[step.dtype])
    while (inner := _match_limits(x)) is not None and counts.get(x, 0) == 1:
        x, (least, most) = inner
        ends = (_steps(end, step.scale) for end in (least, most))
        low, high = (min(max(end, low), high) for end in ends)
    total = match_sum(x, counts)
    shape = n.type.shape
    if total is None or not total.terms or len(total.terms) > MAX_TERMS or shape is None:
        return None
    more = pad_channels(total, shape, wide)
    in_steps = _sum_in_steps(total if more is None else more, step.scale)
    if in_steps is None:
        return None
    out = _limited_integer(in_steps, step, low, high)
    if more is None:
        return out if out.type.shape == shape else None
    wide[n] = out
    return make_node("Slice", [out], axes=(1,), starts=(0,), ends=(shape[1],))


def _sum_in_steps(total: ScaledSum, scale: float) -> ScaledSum | None:
    """Return a sum over a scale; None if that is not accurate: a large offset, such as that of a
    zero point with a scale that is many steps, cancels what was rounded before."""
    by, one = make_scalar(scale), make_scalar(1.0)
    factors = [make_node("Div", [one if f is None else f, by]) for _, f in total.terms]
    offsets = [] if total.offset is None else [make_node("Div", [total.offset, by])]
    with np.errstate(all="ignore"):
        arrays = evaluate(ir_graph.Graph((), (*factors, *offsets)), {})
    *scales, last = arrays if offsets else (*arrays, np.zeros(()))
    if not all(np.isfinite(a).all() for a in scales) or not np.all(np.abs(last) <= MAX_OFFSET):
        return None
    known = [ir_graph.constant(np.asarray(a, np.float32)) for a in arrays]
    terms = zip((leaf for leaf, _ in total.terms), known, strict=False)
    return ScaledSum((*terms,), known[-1] if offsets else None)


def _limited_integer(total: ScaledSum, step: _Step, low: float, high: float) -> Value:
    """Return a sum in steps, rounded, limited, and shifted by the zero point."""
    out = total.offset
    for leaf, factor in total.terms:
        term = leaf if factor is None else make_node("Mul", [leaf, factor])
        out = term if out is None else make_node("Add", [out, term])
    assert out is not None
    limited = make_node("Clip", [out, make_scalar(low), make_scalar(high)])
    whole = make_node("Cast", [make_node("Round", [limited])], to=I32)
    if step.zero:
        whole = make_node("Add", [whole, ir_graph.constant(np.array(step.zero, np.int32))])
    return make_node("Cast", [whole], to=step.dtype)


def _steps(limit: float, scale: float) -> float:
    """Return a limit in whole steps."""
    return float(np.rint(np.float32(limit) / np.float32(scale)))


def _match_limits(v: Value) -> tuple[Value, tuple[float, float]] | None:
    """Return what a Relu or Clip reads, and its limits."""
    n = ir_graph.producer(v)
    if n is None or n.op.domain or not n.inputs or n.inputs[0] is None:
        return None
    if n.op.name == "Relu":
        return n.inputs[0], (0.0, np.inf)
    if n.op.name != "Clip":
        return None
    ends = [*n.inputs[1:], None, None][:2]
    low, high = (np.nan if e is None else constant_number(e) for e in ends)
    if low is None or high is None:
        return None
    limits = (-np.inf if np.isnan(low) else low, np.inf if np.isnan(high) else high)
    return n.inputs[0], limits
