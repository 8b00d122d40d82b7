"""Reductions over a whole tile: vectors are combined first, their lanes last."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

from superopt.kernels.address import Place, flat_index, rejoined
from superopt.kernels.cpu_store import put
from superopt.kernels.cpu_values import get, value
from superopt.kernels.cpu_writer import Writer
from superopt.kernels.functions import across, applied, cast, joined, padded
from superopt.kernels.text import Value, number
from superopt.kernels.tile import Update
from superopt.te import index as ix
from superopt.te.dtype import INDEX
from superopt.te.expr import Tensor
from superopt.te.fn import FOLDS, unit
from superopt.te.inline import placed
from superopt.te.node import Apply, Axis, Expr, Load
from superopt.te.walk import loads

APART = 4  # accumulators, which break the dependency chain
STEP = 16  # vectors that are unrolled; more become a loop


def places(w: Writer, axes: Sequence[Axis], buffer: Tensor, *read: Expr) -> Iterator[Place]:
    """Yield the position of each vector of a tile of `buffer`, computed from the expressions
    `read`."""
    if not axes:
        yield Place()
        return
    *outer, last = axes
    most = _most(w, buffer, *read)
    for where in product(*(range(a.size) for a in outer)):
        at = dict(zip(outer, where, strict=True))
        for begin in range(0, last.size, most):
            lanes = min(most, last.size - begin)
            yield Place({**at, last: begin}, last, lanes)


def _most(w: Writer, buffer: Tensor, *read: Expr) -> int:
    """Return the number of lanes of a vector."""
    held = buffer in w.registers or any(x.tensor in w.registers for e in read for x in loads(e))
    bits = w.bits if held else max(buffer.dtype.bits, 8)
    return max(w.width * 8 // bits, 1)


def folded(w: Writer, s: Update, axis: Axis) -> None:
    """Emit a reduction over one axis of vectors."""
    fn, extent, most = FOLDS[s.fn], axis.size, _most(w, s.buffer, s.value)
    steps = extent // (STEP * most)
    held = any(x.tensor in w.registers or x.tensor in w.tables for x in loads(s.value))
    s = replace(s, value=_in_a_row(s.value))
    totals: list[Value] = []
    done = 0
    if steps > 1 and not held:
        totals, done = _looped(w, s, axis, steps, most), steps * STEP * most
    rest = [_term(w, s, s.value, axis, k, min(most, extent - k)) for k in range(done, extent, most)]
    if rest and extent > most:
        rest[-1] = padded(w.t, rest[-1], unit(s.fn, s.buffer.dtype), most)
    if not totals:
        # max and min test two values at a time for NaN, which needs one accumulator
        apart = 1 if s.fn in ("max", "min") else APART
        totals, rest = rest[:apart], rest[apart:]
    totals = [joined(w.t, fn, rest[j :: len(totals)], x) for j, x in enumerate(totals)]
    total = across(w.t, fn, joined(w.t, fn, totals[1:], totals[0]))
    old = get(w, s.buffer, s.index, Place())
    put(w, s.buffer, s.index, applied(w.t, fn, [old, total], s.buffer.dtype), Place())
    if s.buffer not in w.registers:
        w.known.clear()


def _in_a_row(e: Expr) -> Expr:
    """Simplify the index of a fused loop over contiguous elements: x[f // 56, f % 56] becomes x[0,
    f]."""
    match e:
        case Load(buffer, index, dtype) if len(index) > 1:
            flat = rejoined(flat_index(buffer, index))
            if flat is None:
                return e
            return Load(buffer, (*[ix.as_index(0)] * (len(index) - 1), flat), dtype)
        case Apply(fn, args, dtype) if dtype != INDEX:
            return Apply(fn, tuple(map(_in_a_row, args)), dtype)
    return e


def _looped(w: Writer, s: Update, axis: Axis, steps: int, most: int) -> list[Value]:
    """Emit a loop over the first vectors and return its accumulators."""
    size, kind = STEP * most, s.buffer.dtype
    outer, inner = Axis(w.t.fresh("step"), steps), Axis(w.t.fresh("lane"), size)
    term = placed(s.value, {axis: ix.as_index(outer * size + inner)})
    start = number(unit(s.fn, kind), kind, most)
    slots = [f"%{w.t.fresh('total')}" for _ in range(APART)]
    for slot in slots:
        w.t.entry.append(f"  {slot} = alloca {start.type}")
        w.t.line(f"store {start}, ptr {slot}")
    with w.t.steps(steps) as w.loops[outer]:
        w.known.clear()
        some = [_term(w, s, term, inner, k, most) for k in range(0, size, most)]
        for j, slot in enumerate(slots):
            old = w.t.make(f"load {start.type}, ptr {slot}", kind, most)
            w.t.line(f"store {joined(w.t, FOLDS[s.fn], some[j::APART], old)}, ptr {slot}")
        w.known.clear()
    return [w.t.make(f"load {start.type}, ptr {slot}", kind, most) for slot in slots]


def _term(w: Writer, s: Update, term: Expr, axis: Axis, begin: int, lanes: int) -> Value:
    some = value(w, term, Place({axis: begin}, axis, lanes))
    return cast(w.t, w.t.splat(some, lanes), s.buffer.dtype)
