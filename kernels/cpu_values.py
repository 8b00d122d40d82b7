"""Emit the values of a tile as LLVM text: expressions, indices and loads, a vector at a time.

An address is a loop-dependent pointer plus a constant for each position of the tile. Values that
depend on neither lane nor position are computed once for the tile.
"""

from __future__ import annotations

from collections.abc import Sequence

from superopt.kernels import vector_math
from superopt.kernels.address import Address, Moving, Place, address, flat_index, looked_up, spread
from superopt.kernels.cpu_writer import Writer, even, held, register, suffix, tabled, unpacked
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
from superopt.kernels.prefetch import asked
from superopt.kernels.text import Value, number, stored
from superopt.te import affine
from superopt.te import index as ix
from superopt.te.dtype import BOOL, F32, F64, INDEX, U32
from superopt.te.expr import Tensor, const
from superopt.te.node import Apply, Axis, Const, Expr, Index, Load
from superopt.te.walk import loads

LEAST, LARGEST = 4, 16  # rows of a tile that is transposed in registers


# --- values ---


def value(w: Writer, e: Expr, p: Place) -> Value:
    """Emit the value of `e` at a position: a scalar if all lanes are equal."""
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
            if (out := _or_else(w, where, yes, no, p)) is not None:
                return out
            some = [where, _chosen(w, yes, where, True, p), _chosen(w, no, where, False, p)]
            return applied(w.t, "select", even(w, some), dtype)
        case Apply("log", (Apply("add", (Const(1), x) | (x, Const(1))),)) if x.dtype in (F32, F64):
            within = isinstance(x, Apply) and x.fn == "exp_below" and x.dtype == F32
            if within:
                return vector_math.log_of_one_more_within(w.t, value(w, x, p))
            return vector_math.log_of_one_more(w.t, value(w, x, p))
        case Apply("tanh", (Apply("add", (a, b)),)) if (both := _softplus(a, b)) is not None:
            return vector_math.tanh_of_softplus(w.t, *even(w, [value(w, e, p) for e in both]))
        case Apply("exp_below", (Apply("neg", (Apply("abs"),)) as x,)):
            return vector_math.exp_below_gradual(w.t, value(w, x, p))
        case Apply("pow", (x, Const(n))) if n in POWERS:
            return raised(w.t, value(w, x, p), n)
        case Apply(fn, args, dtype):
            return applied(w.t, fn, even(w, [value(w, a, p) for a in args]), dtype)
    raise NotImplementedError(f"{type(e).__name__} in a tile: {e}")


def _softplus(a: Expr, b: Expr) -> tuple[Expr, Expr] | None:
    """Match max(x, 0) + log(1 + e^-|x|), a softplus without overflow (ops/activation.py): x and
    e^-|x|."""
    match a, b:
        case (
            Apply("max", (x, Const(0)) | (Const(0), x), dtype),
            Apply("log", (Apply("add", (Const(1), u) | (u, Const(1))),)),
        ) if dtype == F32:
            if u == Apply("exp_below", (Apply("neg", (Apply("abs", (x,), F32),), F32),), F32):
                return x, u
    return None


def _both(w: Writer, a: Value, b: Value) -> Value:
    x, y = even(w, [a, b])
    return w.t.make(f"and {x}, {y.text}", BOOL, x.lanes)


def _safe(e: Expr) -> bool:
    """True if all loads of `e` are in range, whatever its guards say."""
    for x in loads(e):
        for i, n in zip(x.index, x.tensor.shape, strict=True):
            where = affine.interval(i)
            if where is None or where[0] < 0 or not isinstance(n, int) or where[1] >= n:
                return False
    return True


def _chosen(w: Writer, e: Expr, guard: Value, holds: bool, p: Place) -> Value:
    """Emit `e`, which may be read only where the guard holds (or does not, if not `holds`)."""
    if _safe(e):
        return value(w, e, p)
    if not holds:
        ones = number(True, BOOL, guard.lanes)
        guard = w.t.make(f"xor {guard}, {ones.text}", BOOL, guard.lanes)
    inner = guard if p.guard is None else _both(w, guard, p.guard)
    return value(w, e, Place(p.at, p.lane, p.lanes, inner))


def _or_else(w: Writer, guard: Value, yes: Expr, no: Expr, p: Place) -> Value | None:
    """Emit a vector load, or a vector of a constant if a scalar guard fails, by selecting the
    pointer; this needs no mask. None if that is impossible."""
    match yes, no:
        case Load(buffer, index), Const(_, kind) if kind != BOOL and buffer in w.pointers:
            if guard.lanes or p.guard is not None or not p.lanes:
                return None
            found = address(buffer, index, p)
            if found is None or found.step != 1:
                return None
            key = (buffer, found, p.lanes, guard, no)
            if key not in w.known:
                at = pointer(w, buffer, found.moving, found.constant, inbounds="")
                here = f"%{w.t.fresh()}"
                w.t.line(f"{here} = select {guard}, ptr {at}, ptr {held(w, no, p.lanes)}")
                shape, size = Value("", kind, p.lanes).type, kind.bits // 8
                w.known[key] = w.t.make(f"load {shape}, ptr {here}, align {size}", kind, p.lanes)
            return w.known[key]
    return None


def index_value(w: Writer, e: Expr, p: Place) -> Value:
    """Emit an index: a scalar if it does not depend on the lane."""
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
    """Emit an element used as an index: negative ones count from the end, out-of-range ones are
    clamped."""
    if i.dtype == U32 and i.lanes and bound.text.isdecimal():
        # in 32 bits, which gather instructions take
        last = number(int(bound.text) - 1, U32, i.lanes)
        return cast(w.t, applied(w.t, "min", [i, last], U32), INDEX)
    i = cast(w.t, i, INDEX)
    i, bound = even(w, [i, bound])
    last = w.t.make(f"sub {bound}, {number(1, INDEX, i.lanes).text}", INDEX, i.lanes)
    zero = number(0, INDEX, i.lanes)
    low = w.t.make(f"icmp slt {i}, {zero.text}", BOOL, i.lanes)
    moved = w.t.make(f"add {i}, {bound.text}", INDEX, i.lanes)
    i = w.t.make(f"select {low}, {moved}, {i}", INDEX, i.lanes)
    return applied(w.t, "max", [applied(w.t, "min", [i, last], INDEX), zero], INDEX)


# --- memory ---


def get(w: Writer, buffer: Tensor, index: Sequence[Expr], p: Place) -> Value:
    """Emit a load at a position: a vector, or a scalar if all lanes read the same element."""
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
    """Load a tile along another axis, if its elements are contiguous along that, and transpose it
    in registers. True if done; the vectors are then in `w.known_values`."""
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
    """Emit a load of contiguous elements, or of one element for all lanes."""
    t, kind, guard = w.t, buffer.dtype, p.guard
    memory, size = stored(kind), max(kind.bits // 8, 1)
    lanes = p.lanes if found.step else 0
    if guard is None:
        shape = f"<{lanes} x {memory}>" if lanes else memory
        at = pointer(w, buffer, found.moving, found.constant)
        if buffer in w.ahead and lanes:
            _prefetch(w, buffer, found)
        return unpacked(t, f"load {shape}, ptr {at}, align {size}", kind, lanes)
    if not lanes:
        place = _flat(w, found.moving, found.constant)
        return _at(w, buffer, place, guard)
    shape, mask = f"<{lanes} x {memory}>", t.splat(guard, lanes)
    at = pointer(w, buffer, found.moving, found.constant, inbounds="")
    name = f"llvm.masked.load.v{lanes}{suffix(kind)}.p0"
    t.declared.add(f"declare {shape} @{name}(ptr, <{lanes} x i1>, {shape})")
    text = f"call {shape} @{name}(ptr align {size} {at}, {mask}, {shape} zeroinitializer)"
    return unpacked(t, text, kind, lanes)


def _prefetch(w: Writer, buffer: Tensor, found: Address) -> None:
    """Emit a prefetch into L2: L1 is full of what is used now."""
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
        if near and looked_up(where) and buffer.dtype.bits in (32, 64):
            return _masked_gather(w, buffer, where, p)
        return _at(w, buffer, index_value(w, where, p), p.guard)
    return _picked(w, buffer, *found, p)


def _masked_gather(w: Writer, buffer: Tensor, where: Expr, p: Place) -> Value:
    """Emit a gather, which is one instruction on processors that have it. The index part that is
    equal in all lanes goes into the base pointer."""
    t, kind = w.t, buffer.dtype
    common, moving = index_value(w, const(0, INDEX), p), None
    for atoms, c in ix.polynomial(where).items():
        term = index_value(w, ix.from_polynomial({atoms: c}), p)
        if not term.lanes:
            common = t.make(f"add nsw {common}, {term.text}", INDEX, 0)
        elif moving is None:
            moving = term
        else:
            moving = t.make(f"add nsw {moving}, {term.text}", INDEX, term.lanes)
    if moving is None:
        return _at(w, buffer, common, None)
    lanes, size = moving.lanes, kind.bits // 8
    begin, at = f"%{t.fresh()}", f"%{t.fresh()}"
    t.line(f"{begin} = getelementptr {stored(kind)}, ptr {w.pointers[buffer]}, {common}")
    t.line(f"{at} = getelementptr {stored(kind)}, ptr {begin}, {moving}")
    shape = f"<{lanes} x {stored(kind)}>"
    name = f"llvm.masked.gather.v{lanes}{suffix(kind)}.v{lanes}p0"
    t.declared.add(f"declare {shape} @{name}(<{lanes} x ptr>, i32, <{lanes} x i1>, {shape})")
    every = ", ".join(["i1 true"] * lanes)
    given = f"<{lanes} x ptr> {at}, i32 {size}, <{lanes} x i1> <{every}>, {shape} poison"
    return unpacked(t, f"call {shape} @{name}({given})", kind, lanes)


def _picked(
    w: Writer, buffer: Tensor, begin: Expr, order: Sequence[int], count: int, p: Place
) -> Value:
    """Emit the elements at offsets `order` from `begin`, shuffled out of one or several vectors;
    the last vector ends where the readable elements do."""
    t, lanes = w.t, p.lanes
    if max(order) == 0:
        return _vector(w, buffer, begin, 0, 0, p)
    out = _vector(w, buffer, begin, 0, min(count, lanes), p)
    if max(order) < lanes:
        return shuffled(t, out, out, order)
    held: Sequence[int] = order  # lanes of `out` that hold the elements before `at`
    for at in range(lanes, max(order) + 1, lanes):
        begins = min(at, count - lanes)
        more = _vector(w, buffer, begin, begins, lanes, p)
        own = [lanes + k - begins if at <= k < at + lanes else n if k < at else 0
               for k, n in zip(order, held, strict=True)]  # fmt: skip
        out, held = shuffled(t, out, more, own), range(lanes)
    return out


def _vector(w: Writer, buffer: Tensor, begin: Expr, more: int, lanes: int, p: Place) -> Value:
    """Emit a load of neighbours `offset` elements behind a base, once for all shuffles of it."""
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
    """Emit scalar loads at these offsets; where the guard fails, of element 0 instead."""
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
        v = unpacked(t, f"load {stored(kind)}, ptr {at}", kind, 0)
        if not places.lanes:
            return v
        out = t.make(f"insertelement {out}, {v}, i64 {k}", kind, places.lanes)
    return out


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
    """Emit the address of a buffer's element: loop terms plus a constant, in elements."""
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
