"""Emit gathers: loads whose lanes are not contiguous in memory.

Nearby elements are shuffled out of vectors. Others are gathered, or loaded one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from superopt.kernels.llvm.address import (
    TilePosition,
    flat_index,
    is_data_dependent,
    shuffle_pattern,
)
from superopt.kernels.llvm.builder import Value, memory_type, number
from superopt.kernels.llvm.lanes import shuffle_lanes
from superopt.kernels.llvm.writer import Writer, loaded_value, match_lanes, memory_suffix
from superopt.te.expr import index as te_index
from superopt.te.expr.dtype import BOOL, INDEX
from superopt.te.expr.node import Expr
from superopt.te.expr.tensor import Tensor, const

EmitIndex = Callable[[Writer, Expr, TilePosition], Value]


def emit_gather(
    w: Writer, buffer: Tensor, index: Sequence[Expr], p: TilePosition, emit_index: EmitIndex
) -> Value:
    """Emit a load by the cheapest of these means. emit_index: emits the value of an index."""
    where = flat_index(buffer, index)
    near = p.guard is None and p.lanes and buffer.dtype != BOOL
    told: dict[Expr, Expr] = {a: te_index.as_index(k) for a, k in w.unrolled_values.items()}
    found = shuffle_pattern(te_index.substitute(where, told), buffer, p) if near else None
    if found is None:
        if near and is_data_dependent(where) and buffer.dtype.bits in (32, 64):
            return _emit_masked_gather(w, buffer, where, p, emit_index)
        return emit_scalar_loads(w, buffer, emit_index(w, where, p), p.guard)
    return _emit_shuffled_load(w, buffer, *found, p, emit_index)


def _emit_masked_gather(
    w: Writer, buffer: Tensor, where: Expr, p: TilePosition, emit_index: EmitIndex
) -> Value:
    """Emit a gather, which is one instruction on processors that have it. The index part that is
    equal in all lanes goes into the base pointer."""
    t, kind = w.t, buffer.dtype
    common, moving = emit_index(w, const(0, INDEX), p), None
    for atoms, c in te_index.polynomial(where).items():
        term = emit_index(w, te_index.from_polynomial({atoms: c}), p)
        if not term.lanes:
            common = t.make(f"add nsw {common}, {term.text}", INDEX, 0)
        elif moving is None:
            moving = term
        else:
            moving = t.make(f"add nsw {moving}, {term.text}", INDEX, term.lanes)
    if moving is None:
        return emit_scalar_loads(w, buffer, common, None)
    lanes, size = moving.lanes, kind.bits // 8
    begin, at = f"%{t.fresh()}", f"%{t.fresh()}"
    t.line(f"{begin} = getelementptr {memory_type(kind)}, ptr {w.pointers[buffer]}, {common}")
    t.line(f"{at} = getelementptr {memory_type(kind)}, ptr {begin}, {moving}")
    shape = f"<{lanes} x {memory_type(kind)}>"
    name = f"llvm.masked.gather.v{lanes}{memory_suffix(kind)}.v{lanes}p0"
    t.declared.add(f"declare {shape} @{name}(<{lanes} x ptr>, i32, <{lanes} x i1>, {shape})")
    every = ", ".join(["i1 true"] * lanes)
    given = f"<{lanes} x ptr> {at}, i32 {size}, <{lanes} x i1> <{every}>, {shape} poison"
    return loaded_value(t, f"call {shape} @{name}({given})", kind, lanes)


def _emit_shuffled_load(
    w: Writer,
    buffer: Tensor,
    begin: Expr,
    order: Sequence[int],
    count: int,
    p: TilePosition,
    emit_index: EmitIndex,
) -> Value:
    """Emit the elements at offsets `order` from `begin`, shuffled out of one or several vectors;
    the last vector ends where the readable elements do."""
    t, lanes = w.t, p.lanes
    if max(order) == 0:
        return _emit_neighbours(w, buffer, begin, 0, 0, p, emit_index)
    out = _emit_neighbours(w, buffer, begin, 0, min(count, lanes), p, emit_index)
    if max(order) < lanes:
        return shuffle_lanes(t, out, out, order)
    held: Sequence[int] = order  # lanes of `out` that hold the elements before `at`
    for at in range(lanes, max(order) + 1, lanes):
        begins = min(at, count - lanes)
        more = _emit_neighbours(w, buffer, begin, begins, lanes, p, emit_index)
        own = [lanes + k - begins if at <= k < at + lanes else n if k < at else 0
               for k, n in zip(order, held, strict=True)]  # fmt: skip
        out, held = shuffle_lanes(t, out, more, own), range(lanes)
    return out


def _emit_neighbours(
    w: Writer,
    buffer: Tensor,
    begin: Expr,
    offset: int,
    lanes: int,
    p: TilePosition,
    emit_index: EmitIndex,
) -> Value:
    """Emit a load of neighbours `offset` elements behind a base, once for all shuffles of it."""
    key = (buffer, "vector", begin, offset, lanes)
    if key not in w.known_values:
        t, kind = w.t, buffer.dtype
        at = f"%{t.fresh()}"
        where = emit_index(w, te_index.as_index(begin + offset), p)
        t.line(f"{at} = getelementptr {memory_type(kind)}, ptr {w.pointers[buffer]}, {where}")
        shape = f"<{lanes} x {memory_type(kind)}>" if lanes else memory_type(kind)
        size = max(kind.bits // 8, 1)
        w.known_values[key] = t.make(f"load {shape}, ptr {at}, align {size}", kind, lanes)
    return w.known_values[key]


def emit_scalar_loads(w: Writer, buffer: Tensor, places: Value, guard: Value | None) -> Value:
    """Emit scalar loads at these offsets; where the guard fails, of element 0 instead."""
    t, kind = w.t, buffer.dtype
    if guard is not None:
        places, guard = match_lanes(w, [places, guard])
        zero = number(0, INDEX, places.lanes)
        places = t.make(f"select {guard}, {places}, {zero}", INDEX, places.lanes)
    out = Value("poison", kind, places.lanes)
    for k in range(max(places.lanes, 1)):
        one = places
        if places.lanes:
            one = t.make(f"extractelement {places}, i64 {k}", INDEX, 0)
        at = f"%{t.fresh()}"
        t.line(f"{at} = getelementptr {memory_type(kind)}, ptr {w.pointers[buffer]}, {one}")
        v = loaded_value(t, f"load {memory_type(kind)}, ptr {at}", kind, 0)
        if not places.lanes:
            return v
        out = t.make(f"insertelement {out}, {v}, i64 {k}", kind, places.lanes)
    return out
