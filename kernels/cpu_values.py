"""Values of a tile as LLVM's text: expressions, indices and memory, a vector at a time.

An address is a pointer that hangs on loops, and a constant for each place of the tile; what hangs
on neither lane nor place is computed once for all of the tile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from superopt.kernels.address import Address, Moving, Place, address, flat_index, spread
from superopt.kernels.functions import (
    POWERS,
    applied,
    cast,
    first,
    raised,
    shuffled,
    stacked,
    transposed,
)
from superopt.kernels.prefetch import Ahead, asked
from superopt.kernels.text import Text, Value, element, number, stored
from superopt.kernels.vector_math import log_of_one_more
from superopt.te import affine
from superopt.te import index as ix
from superopt.te.dtype import BOOL, F32, F64, INDEX, DType
from superopt.te.expr import Tensor
from superopt.te.node import Apply, Axis, Const, Expr, Index, Load
from superopt.te.walk import loads

LEAST, LARGEST = 4, 16  # rows of a tile that is turned


@dataclass(slots=True)
class Writer:
    """What the text stands on: a vector's bytes, buffers, the loops around, what is known here."""

    t: Text
    width: int
    pointers: dict[Tensor, str] = field(default_factory=dict)
    registers: dict[Tensor, dict[tuple[int, ...], str]] = field(default_factory=dict)
    loops: dict[Axis, Value] = field(default_factory=dict)
    known: dict[object, Value] = field(default_factory=dict)
    tables: dict[Tensor, np.ndarray] = field(default_factory=dict)
    unrolled: dict[Axis, int] = field(default_factory=dict)
    ahead: dict[Tensor, Ahead] = field(default_factory=dict)
    bits: int = 8  # of the largest element beside a register
    tile: dict[Axis, int] = field(default_factory=dict)  # extents of what is stored at once


# --- values ---


def value(w: Writer, e: Expr, p: Place) -> Value:
    """The value of `e` there: a scalar where no lane differs."""
    if e.dtype == INDEX:
        return index_value(w, e, p)
    match e:
        case Const(v, dtype):
            return number(v, dtype)
        case Load(buffer, index):
            found = tabled(w, e, p)
            return get(w, buffer, index, p) if found is None else number(found, e.dtype)
        case Apply("select", (guard, yes, no), dtype):
            where = value(w, guard, p)
            some = [where, _chosen(w, yes, where, True, p), _chosen(w, no, where, False, p)]
            return applied(w.t, "select", even(w, some), dtype)
        case Apply("log", (Apply("add", (Const(1), x) | (x, Const(1))),)) if x.dtype in (F32, F64):
            return log_of_one_more(w.t, value(w, x, p))
        case Apply("pow", (x, Const(n))) if n in POWERS:
            return raised(w.t, value(w, x, p), n)
        case Apply(fn, args, dtype):
            return applied(w.t, fn, even(w, [value(w, a, p) for a in args]), dtype)
    raise NotImplementedError(f"{type(e).__name__} in a tile: {e}")


def tabled(w: Writer, e: Expr, p: Place) -> float | None:
    """The number that `e` reads of a table, where loops that are written out say which."""
    if not isinstance(e, Load) or e.tensor not in w.tables:
        return None
    fixed = {**w.unrolled, **p.at}
    env: dict[Expr, Expr] = {a: ix.as_index(k) for a, k in fixed.items() if a != p.lane}
    at = [ix.substitute(i, env) for i in e.index]
    if not all(isinstance(i, Const) for i in at):
        return None
    return float(w.tables[e.tensor][tuple(ix.evaluate(i, {}) for i in at)])


def even(w: Writer, some: Sequence[Value]) -> list[Value]:
    most = max(v.lanes for v in some)
    return [w.t.splat(v, most) for v in some]


def _both(w: Writer, a: Value, b: Value) -> Value:
    x, y = even(w, [a, b])
    return w.t.make(f"and {x}, {y.text}", BOOL, x.lanes)


def _safe(e: Expr) -> bool:
    """May all that it reads be read, whatever conditions say?"""
    for x in loads(e):
        for i, n in zip(x.index, x.tensor.shape, strict=True):
            where = affine.interval(i)
            if where is None or where[0] < 0 or not isinstance(n, int) or where[1] >= n:
                return False
    return True


def _chosen(w: Writer, e: Expr, guard: Value, holds: bool, p: Place) -> Value:
    """The value of `e`, of which something may be read only where the guard holds, or does not."""
    if _safe(e):
        return value(w, e, p)
    if not holds:
        ones = number(True, BOOL, guard.lanes)
        guard = w.t.make(f"xor {guard}, {ones.text}", BOOL, guard.lanes)
    inner = guard if p.guard is None else _both(w, guard, p.guard)
    return value(w, e, Place(p.at, p.lane, p.lanes, inner))


def index_value(w: Writer, e: Expr, p: Place) -> Value:
    """An index: a scalar where it does not hang on the lane."""
    total: Value | None = None
    for atoms, c in ix.polynomial(e).items():
        term = number(c, INDEX)
        for a in atoms:
            v = _atom(w, a, p)
            x, y = even(w, [term, v])
            term = v if term.text == "1" else w.t.make(f"mul nsw {x}, {y.text}", INDEX, x.lanes)
        if total is None:
            total = term
        else:
            x, y = even(w, [total, term])
            total = w.t.make(f"add nsw {x}, {y.text}", INDEX, x.lanes)
    return total or number(0, INDEX)


def _atom(w: Writer, a: Expr, p: Place) -> Value:
    match a:
        case Axis() if a == p.lane and p.lanes:
            begin = p.at[a]
            steps = ", ".join(f"i64 {begin + k}" for k in range(p.lanes))
            return Value(f"<{steps}>", INDEX, p.lanes)
        case Axis() if a in p.at:
            return number(p.at[a], INDEX)
        case Axis():
            return w.loops[a]
        case Index(found, bound):
            return _wrapped(w, value(w, found, p), index_value(w, bound, p))
        case Apply("floordiv" | "mod" as fn, (x, y)):
            low = affine.interval(x)
            if low is not None and low[0] >= 0 and isinstance(y, Const):
                u, v = even(w, [index_value(w, x, p), index_value(w, y, p)])
                how = "udiv" if fn == "floordiv" else "urem"
                return w.t.make(f"{how} {u}, {v.text}", INDEX, u.lanes)
            u, v = even(w, [index_value(w, x, p), index_value(w, y, p)])
            rest = applied(w.t, "mod", [u, v], INDEX)
            if fn == "mod":
                return rest
            whole = w.t.make(f"sub {u}, {rest.text}", INDEX, u.lanes)
            return applied(w.t, "div", [whole, v], INDEX)
        case Apply("min" | "max" as fn, args):
            return applied(w.t, fn, even(w, [index_value(w, x, p) for x in args]), INDEX)
    raise NotImplementedError(f"index {a}")


def _wrapped(w: Writer, i: Value, bound: Value) -> Value:
    """An element as an index: negative ones from the end; what is out of range is at its end."""
    i = cast(w.t, i, INDEX)
    i, bound = even(w, [i, bound])
    zero = number(0, INDEX, i.lanes)
    low = w.t.make(f"icmp slt {i}, {zero.text}", BOOL, i.lanes)
    moved = w.t.make(f"add {i}, {bound.text}", INDEX, i.lanes)
    i = w.t.make(f"select {low}, {moved}, {i}", INDEX, i.lanes)
    last = w.t.make(f"sub {bound}, {number(1, INDEX, i.lanes).text}", INDEX, i.lanes)
    return applied(w.t, "max", [applied(w.t, "min", [i, last], INDEX), zero], INDEX)


# --- memory ---


def get(w: Writer, buffer: Tensor, index: Sequence[Expr], p: Place) -> Value:
    if buffer in w.registers:
        slot, lanes = register(w, buffer, index, p)
        out = Value("", buffer.dtype, lanes)
        return w.t.make(f"load {out.type}, ptr {slot}", buffer.dtype, lanes)
    found = address(buffer, index, p)
    key: tuple[object, ...]
    if found is None or (found.step not in (0, 1) and p.lanes):
        key = _key(buffer, index, p)
        if key not in w.known and not (found and _turned(w, buffer, index, p)):
            w.known[key] = _gather(w, buffer, index, p)
    else:
        key = (buffer, found, p.lanes if found.step else 0, p.guard)
        if key not in w.known:
            w.known[key] = _near(w, buffer, found, p)
    return w.known[key]


def _key(buffer: Tensor, index: Sequence[Expr], p: Place) -> tuple[object, ...]:
    return (buffer, tuple(index), tuple(p.at.items()), p.lanes, p.guard)


def _turned(w: Writer, buffer: Tensor, index: Sequence[Expr], p: Place) -> bool:
    """Read all of a tile along another of its axes, if neighbours along that are neighbours in
    memory, and turn it in registers; the vectors are known then."""
    if p.guard is not None or p.lane is None or p.lanes < 2 or buffer.dtype == BOOL:
        return False
    for m, size in w.tile.items():
        fits = LEAST <= size <= LARGEST and not size & (size - 1)
        if m == p.lane or not fits or (size < p.lanes and p.lanes & (p.lanes - 1)):
            continue
        along = [Place({**p.at, m: 0, p.lane: p.at[p.lane] + j}, m, size) for j in range(p.lanes)]
        found = [address(buffer, index, each) for each in along]
        if any(f is None or f.step != 1 for f in found):
            continue
        rows = [_near(w, buffer, f, q) for f, q in zip(found, along, strict=True) if f is not None]
        rows += [Value("poison", buffer.dtype, size)] * (size - p.lanes)
        for k, v in enumerate(transposed(w.t, stacked(w.t, rows, size))):
            here = Place({**p.at, m: k}, p.lane, p.lanes)
            w.known[_key(buffer, index, here)] = first(w.t, v, p.lanes)
        return True
    return False


def _near(w: Writer, buffer: Tensor, found: Address, p: Place) -> Value:
    """Neighbours, or one element for all lanes."""
    t, kind, guard = w.t, buffer.dtype, p.guard
    memory, size = stored(kind), max(kind.bits // 8, 1)
    lanes = p.lanes if found.step else 0
    if guard is None:
        shape = f"<{lanes} x {memory}>" if lanes else memory
        at = pointer(w, buffer, found.moving, found.constant)
        if buffer in w.ahead and lanes:
            _prefetch(w, buffer, found)
        return _unpacked(t, f"load {shape}, ptr {at}, align {size}", kind, lanes)
    if not lanes:
        place = _flat(w, found.moving, found.constant)
        return _at(w, buffer, place, guard)
    shape, mask = f"<{lanes} x {memory}>", t.splat(guard, lanes)
    at = pointer(w, buffer, found.moving, found.constant, inbounds="")
    name = f"llvm.masked.load.v{lanes}{_suffix(kind)}.p0"
    t.declared.add(f"declare {shape} @{name}(ptr, <{lanes} x i1>, {shape})")
    text = f"call {shape} @{name}(ptr align {size} {at}, {mask}, {shape} zeroinitializer)"
    return _unpacked(t, text, kind, lanes)


def _prefetch(w: Writer, buffer: Tensor, found: Address) -> None:
    """Ask for what will be read soon, into the second cache: the first one is full of what is read
    now."""
    how = w.ahead[buffer]
    soon = asked(how, found.moving, found.constant, max(buffer.dtype.bits // 8, 1))
    if soon is None or not all(first <= w.unrolled[a] < last for a, first, last in how.fresh):
        return
    at = pointer(w, buffer, *soon, inbounds="")
    w.t.declared.add("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
    w.t.line(f"call void @llvm.prefetch.p0(ptr {at}, i32 0, i32 2, i32 1)")


def _gather(w: Writer, buffer: Tensor, index: Sequence[Expr], p: Place) -> Value:
    where = flat_index(buffer, index)
    near = p.guard is None and p.lanes and buffer.dtype != BOOL
    told: dict[Expr, Expr] = {a: ix.as_index(k) for a, k in w.unrolled.items()}
    found = spread(ix.substitute(where, told), buffer, p) if near else None
    if found is None:
        return _at(w, buffer, index_value(w, where, p), p.guard)
    return _picked(w, buffer, *found, p)


def _picked(
    w: Writer, buffer: Tensor, begin: Expr, order: Sequence[int], count: int, p: Place
) -> Value:
    """Elements at these places from `begin` on, of one vector that has them all, or of some, the
    last of which ends where what is there does."""
    t, lanes = w.t, p.lanes
    if max(order) == 0:
        return _vector(w, buffer, begin, 0, 0, p)
    out = _vector(w, buffer, begin, 0, min(count, lanes), p)
    if max(order) < lanes:
        return shuffled(t, out, out, order)
    held: Sequence[int] = order  # where in `out` what comes before `at` is
    for at in range(lanes, max(order) + 1, lanes):
        begins = min(at, count - lanes)
        more = _vector(w, buffer, begin, begins, lanes, p)
        own = [lanes + k - begins if at <= k < at + lanes else n if k < at else 0
               for k, n in zip(order, held, strict=True)]  # fmt: skip
        out, held = shuffled(t, out, more, own), range(lanes)
    return out


def _vector(w: Writer, buffer: Tensor, begin: Expr, more: int, lanes: int, p: Place) -> Value:
    """Neighbours, `more` elements behind a place; once, whatever is picked of them."""
    key = (buffer, "vector", begin, more, lanes)
    if key not in w.known:
        t, kind = w.t, buffer.dtype
        at = f"%{t.fresh()}"
        where = index_value(w, ix.as_index(begin + more), p)
        t.line(f"{at} = getelementptr {stored(kind)}, ptr {w.pointers[buffer]}, {where}")
        shape = f"<{lanes} x {stored(kind)}>" if lanes else stored(kind)
        size = max(kind.bits // 8, 1)
        w.known[key] = t.make(f"load {shape}, ptr {at}, align {size}", kind, lanes)
    return w.known[key]


def _at(w: Writer, buffer: Tensor, places: Value, guard: Value | None) -> Value:
    """The elements at these places; where the guard does not hold, the first one instead."""
    t, kind = w.t, buffer.dtype
    if guard is not None:
        places, guard = even(w, [places, guard])
        zero = number(0, INDEX, places.lanes)
        places = t.make(f"select {guard}, {places}, {zero}", INDEX, places.lanes)
    out = Value("poison", kind, places.lanes)
    for k in range(max(places.lanes, 1)):
        one = places
        if places.lanes:
            one = t.make(f"extractelement {places}, i64 {k}", INDEX, 0)
        at = f"%{t.fresh()}"
        t.line(f"{at} = getelementptr {stored(kind)}, ptr {w.pointers[buffer]}, {one}")
        v = _unpacked(t, f"load {stored(kind)}, ptr {at}", kind, 0)
        if not places.lanes:
            return v
        out = t.make(f"insertelement {out}, {v}, i64 {k}", kind, places.lanes)
    return out


def _suffix(kind: DType) -> str:
    return "i8" if kind == BOOL else Value("", kind).suffix


def _unpacked(t: Text, load: str, kind: DType, lanes: int) -> Value:
    """What is loaded, as a value: of a byte that is no zero true."""
    if kind != BOOL:
        return t.make(load, kind, lanes)
    shape = f"<{lanes} x i8>" if lanes else "i8"
    byte = f"%{t.fresh()}"
    t.line(f"{byte} = {load}")
    zero = "zeroinitializer" if lanes else "0"
    return t.make(f"icmp ne {shape} {byte}, {zero}", BOOL, lanes)


def register(w: Writer, buffer: Tensor, index: Sequence[Expr], p: Place) -> tuple[str, int]:
    """The slot of a vector of a tile, of which LLVM makes a register; how many lanes it has."""
    where, lanes = [], 0
    for i in index:
        place = 0
        for atoms, c in ix.polynomial(i).items():
            (axis,) = atoms or (None,)
            assert axis is None or isinstance(axis, Axis)
            place += c * (1 if axis is None else p.at[axis])
            lanes = p.lanes if axis is not None and axis == p.lane else lanes
        where.append(place)
    slots = w.registers[buffer]
    key = tuple(where)
    if key not in slots:
        slots[key] = f"%{w.t.fresh('tile')}"
        one = element(buffer.dtype)
        w.t.entry.append(f"  {slots[key]} = alloca {f'<{lanes} x {one}>' if lanes else one}")
    return slots[key], lanes


def _flat(w: Writer, moving: Moving, constant: int) -> Value:
    total = number(constant, INDEX)
    for atoms, c in moving:
        term = number(c, INDEX)
        for a in atoms:
            v = _atom(w, a, Place())
            term = v if term.text == "1" else w.t.make(f"mul nsw {term}, {v.text}", INDEX, 0)
        total = term if total.text == "0" else w.t.make(f"add nsw {total}, {term.text}", INDEX, 0)
    return total


def pointer(
    w: Writer, buffer: Tensor, moving: Moving, constant: int, inbounds: str = " inbounds"
) -> str:
    memory, base = stored(buffer.dtype), w.pointers[buffer]
    if moving:
        key = ("pointer", buffer, moving)
        if key not in w.known:
            place = _flat(w, moving, 0)
            at = f"%{w.t.fresh()}"
            w.t.line(f"{at} = getelementptr{inbounds} {memory}, ptr {base}, {place}")
            w.known[key] = Value(at, INDEX)
        base = w.known[key].text
    if not constant:
        return base
    at = f"%{w.t.fresh()}"
    w.t.line(f"{at} = getelementptr{inbounds} {memory}, ptr {base}, i64 {constant}")
    return at
