"""Reductions over a whole tile: vectors are combined first, their lanes last."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

from superopt.kernels.llvm.address import TilePosition, flat_index, merge_div_mod
from superopt.kernels.llvm.builder import Value, number
from superopt.kernels.llvm.functions import emit_cast, emit_function
from superopt.kernels.llvm.lanes import emit_fold, pad_lanes, reduce_lanes
from superopt.kernels.llvm.stores import emit_store
from superopt.kernels.llvm.values import emit_load, emit_value
from superopt.kernels.llvm.writer import Writer
from superopt.kernels.loops.tile import Update
from superopt.te.analysis.inline import substitute_axes
from superopt.te.analysis.walk import loads
from superopt.te.expr import index as te_index
from superopt.te.expr.dtype import INDEX
from superopt.te.expr.functions import REDUCTION_COMBINERS, identity_element
from superopt.te.expr.node import Apply, Axis, Expr, Load
from superopt.te.expr.tensor import Tensor

INDEPENDENT_TOTALS = 4  # accumulators, which break the dependency chain
UNROLLED_VECTORS = 16  # vectors that are unrolled; more become a loop


def vector_positions(
    w: Writer, axes: Sequence[Axis], buffer: Tensor, *read: Expr
) -> Iterator[TilePosition]:
    """Yield the position of each vector of a tile of `buffer`, computed from the expressions
    `read`."""
    if not axes:
        yield TilePosition()
        return
    *outer, last = axes
    most = _max_lanes(w, buffer, *read)
    for where in product(*(range(a.size) for a in outer)):
        at = dict(zip(outer, where, strict=True))
        for begin in range(0, last.size, most):
            lanes = min(most, last.size - begin)
            yield TilePosition({**at, last: begin}, last, lanes)


def _max_lanes(w: Writer, buffer: Tensor, *read: Expr) -> int:
    """Return the number of lanes of a vector."""
    held = buffer in w.registers or any(x.tensor in w.registers for e in read for x in loads(e))
    bits = w.widest_bits if held else max(buffer.dtype.bits, 8)
    return max(w.width * 8 // bits, 1)


def emit_reduction(w: Writer, s: Update, axis: Axis) -> None:
    """Emit a reduction over one axis of vectors."""
    fn, extent, most = REDUCTION_COMBINERS[s.fn], axis.size, _max_lanes(w, s.buffer, s.value)
    steps = extent // (UNROLLED_VECTORS * most)
    held = any(x.tensor in w.registers or x.tensor in w.tables for x in loads(s.value))
    s = replace(s, value=_flatten_loads(s.value))
    totals: list[Value] = []
    done = 0
    if steps > 1 and not held:
        totals, done = (
            _emit_reduction_loop(w, s, axis, steps, most),
            steps * UNROLLED_VECTORS * most,
        )
    rest = [
        _emit_term(w, s, s.value, axis, k, min(most, extent - k)) for k in range(done, extent, most)
    ]
    if rest and extent > most:
        rest[-1] = pad_lanes(w.t, rest[-1], identity_element(s.fn, s.buffer.dtype), most)
    if not totals:
        # max and min test two values at a time for NaN, which needs one accumulator
        apart = 1 if s.fn in ("max", "min") else INDEPENDENT_TOTALS
        totals, rest = rest[:apart], rest[apart:]
    totals = [emit_fold(w.t, fn, rest[j :: len(totals)], x) for j, x in enumerate(totals)]
    total = reduce_lanes(w.t, fn, emit_fold(w.t, fn, totals[1:], totals[0]))
    old = emit_load(w, s.buffer, s.index, TilePosition())
    emit_store(
        w, s.buffer, s.index, emit_function(w.t, fn, [old, total], s.buffer.dtype), TilePosition()
    )
    if s.buffer not in w.registers:
        w.known_values.clear()


def _flatten_loads(e: Expr) -> Expr:
    """Simplify the index of a fused loop over contiguous elements: x[f // 56, f % 56] becomes x[0,
    f]."""
    match e:
        case Load(buffer, index, dtype) if len(index) > 1:
            flat = merge_div_mod(flat_index(buffer, index))
            if flat is None:
                return e
            return Load(buffer, (*[te_index.as_index(0)] * (len(index) - 1), flat), dtype)
        case Apply(fn, args, dtype) if dtype != INDEX:
            return Apply(fn, tuple(map(_flatten_loads, args)), dtype)
    return e


def _emit_reduction_loop(
    w: Writer, s: Update, axis: Axis, steps: int, max_lanes: int
) -> list[Value]:
    """Emit a loop over the first vectors and return its accumulators."""
    size, kind = UNROLLED_VECTORS * max_lanes, s.buffer.dtype
    outer, inner = Axis(w.t.fresh("step"), steps), Axis(w.t.fresh("lane"), size)
    term = substitute_axes(s.value, {axis: te_index.as_index(outer * size + inner)})
    start = number(identity_element(s.fn, kind), kind, max_lanes)
    slots = [f"%{w.t.fresh('total')}" for _ in range(INDEPENDENT_TOTALS)]
    for slot in slots:
        w.t.entry.append(f"  {slot} = alloca {start.type}")
        w.t.line(f"store {start}, ptr {slot}")
    with w.loop(outer):
        some = [_emit_term(w, s, term, inner, k, max_lanes) for k in range(0, size, max_lanes)]
        combine = REDUCTION_COMBINERS[s.fn]
        for j, slot in enumerate(slots):
            old = w.t.make(f"load {start.type}, ptr {slot}", kind, max_lanes)
            total = emit_fold(w.t, combine, some[j::INDEPENDENT_TOTALS], old)
            w.t.line(f"store {total}, ptr {slot}")
    return [w.t.make(f"load {start.type}, ptr {slot}", kind, max_lanes) for slot in slots]


def _emit_term(w: Writer, s: Update, term: Expr, axis: Axis, begin: int, lanes: int) -> Value:
    some = emit_value(w, term, TilePosition({axis: begin}, axis, lanes))
    return emit_cast(w.t, w.t.splat(some, lanes), s.buffer.dtype)
