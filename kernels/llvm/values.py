"""Emit the values of a tile as LLVM text: expressions, indices and loads, a vector at a time.

An address is a loop-dependent pointer plus a constant for each position of the tile. Values that
depend on neither lane nor position are computed once for the tile.
"""

from __future__ import annotations

from collections.abc import Sequence

from superopt.kernels.llvm import requantization
from superopt.kernels.llvm.address import (
    Address,
    LoopTerms,
    TilePosition,
    address,
    depends_on_sizes,
    fold_unrolled_terms,
    is_always_in_range,
    terms_by_depth,
)
from superopt.kernels.llvm.builder import Value, memory_type, number
from superopt.kernels.llvm.byte_lookups import emit_byte_lookup, match_byte_lookup
from superopt.kernels.llvm.functions import (
    CHEAP_EXPONENTS,
    emit_bit_field,
    emit_cast,
    emit_function,
    emit_power,
    match_bit_field,
)
from superopt.kernels.llvm.gathers import emit_gather, emit_scalar_loads
from superopt.kernels.llvm.lanes import concat_vectors, first_lanes, transpose_vectors
from superopt.kernels.llvm.math import vector_math
from superopt.kernels.llvm.prefetch import prefetch_address
from superopt.kernels.llvm.writer import (
    Writer,
    constant_slot,
    loaded_value,
    match_lanes,
    memory_suffix,
    register_slot,
    table_value,
)
from superopt.kernels.processor import AVX512_VBMI
from superopt.te.analysis import affine
from superopt.te.expr import index as te_index
from superopt.te.expr.dtype import BOOL, F32, F64, INDEX, U32
from superopt.te.expr.node import Apply, Axis, Const, Expr, Index, Load, Size
from superopt.te.expr.tensor import Tensor

MIN_TRANSPOSE_ROWS, MAX_TRANSPOSE_ROWS = 4, 16  # rows of a tile that is transposed in registers


# --- values ---


def emit_value(w: Writer, e: Expr, p: TilePosition) -> Value:
    """Emit the value of `e` at a position: a scalar if all lanes are equal."""
    if e.dtype == INDEX:
        return emit_index(w, e, p)
    match e:
        case Const(v, dtype):
            return number(v, dtype)
        case Load(buffer, index):
            found = table_value(w, e, p)
            if found is None and buffer in w.tables:
                raise NotImplementedError(f"{e}: no unrolled loops determine the index of a table")
            return emit_load(w, buffer, index, p) if found is None else number(found, e.dtype)
        case Apply("select", (guard, yes, no), dtype):
            where = emit_value(w, guard, p)
            if (out := _emit_pointer_select(w, where, yes, no, p)) is not None:
                return out
            some = [
                where,
                _emit_guarded_value(w, yes, where, True, p),
                _emit_guarded_value(w, no, where, False, p),
            ]
            return emit_function(w.t, "select", match_lanes(w, some), dtype)
        case Apply("log", (Apply("add", (Const(1), x) | (x, Const(1))),)) if x.dtype in (F32, F64):
            within = isinstance(x, Apply) and x.fn == "exp_below" and x.dtype == F32
            log1p = vector_math.log1p_unit_interval if within else vector_math.log1p
            return log1p(w.t, emit_value(w, x, p))
        case Apply("round") if w.width > 16 and (quotient := vector_math.match_rounded_quotient(e)):
            return vector_math.rounded_quotient(w.t, emit_value(w, quotient[0], p), quotient[1])
        case Apply("tanh", (Apply("add", (a, b)),)) if (
            both := vector_math.match_softplus(a, b)
        ) is not None:
            return vector_math.tanh_of_softplus(
                w.t, *match_lanes(w, [emit_value(w, e, p) for e in both])
            )
        case Apply("cast") if (inner := requantization.match_rounded_integer(e)) is not None:
            return requantization.emit_rounded_integer(w, inner, lambda x: emit_value(w, x, p))
        case Apply("cast") if (inner := requantization.match_narrowed_integer(e)) is not None:
            return emit_cast(w.t, emit_value(w, inner, p), F32)
        case Apply("sub" | "cast") if w.t.has_avx512 and (field := match_bit_field(e)) is not None:
            return emit_bit_field(w.t, field, emit_value(w, field.bits, p))
        case Apply("exp_below", (Apply("neg", (Apply("abs"),)) as x,)):
            return vector_math.exp_non_positive_gradual(w.t, emit_value(w, x, p))
        case Apply("pow", (x, Const(n))) if n in CHEAP_EXPONENTS:
            return emit_power(w.t, emit_value(w, x, p), n)
        case Apply(fn, args, dtype):
            return emit_function(
                w.t, fn, match_lanes(w, [emit_value(w, a, p) for a in args]), dtype
            )
    raise NotImplementedError(f"{type(e).__name__} in a tile: {e}")


def _emit_and(w: Writer, a: Value, b: Value) -> Value:
    x, y = match_lanes(w, [a, b])
    return w.t.make(f"and {x}, {y.text}", BOOL, x.lanes)


def _emit_guarded_value(w: Writer, e: Expr, guard: Value, holds: bool, p: TilePosition) -> Value:
    """Emit `e`, which may be read only where the guard holds (or does not, if not `holds`)."""
    if is_always_in_range(e):
        return emit_value(w, e, p)
    if not holds:
        ones = number(True, BOOL, guard.lanes)
        guard = w.t.make(f"xor {guard}, {ones.text}", BOOL, guard.lanes)
    inner = guard if p.guard is None else _emit_and(w, guard, p.guard)
    return emit_value(w, e, TilePosition(p.axis_values, p.lane_axis, p.lanes, inner))


def _emit_pointer_select(
    w: Writer, guard: Value, yes: Expr, no: Expr, p: TilePosition
) -> Value | None:
    """Emit a vector load, or a vector of a constant if a scalar guard fails, by selecting the
    pointer; this needs no mask. None if that is impossible."""
    match yes, no:
        case Load(buffer, index), Const(_, kind) if kind != BOOL and buffer in w.pointers:
            if guard.lanes or p.guard is not None or not p.lanes:
                return None
            found = address(buffer, index, p)
            if found is None or found.lane_stride != 1:
                return None
            key = (buffer, found, p.lanes, guard, no)
            if key not in w.known_values:
                at = emit_pointer(w, buffer, found.loop_terms, found.constant, inbounds="")
                here = f"%{w.t.fresh()}"
                w.t.line(f"{here} = select {guard}, ptr {at}, ptr {constant_slot(w, no, p.lanes)}")
                shape, size = Value("", kind, p.lanes).type, kind.bits // 8
                w.known_values[key] = w.t.make(
                    f"load {shape}, ptr {here}, align {size}", kind, p.lanes
                )
            return w.known_values[key]
    return None


def emit_index(w: Writer, e: Expr, p: TilePosition) -> Value:
    """Emit an index: a scalar if it does not depend on the lane."""
    total: Value | None = None
    for atoms, c in te_index.polynomial(e).items():
        term = number(c, INDEX)
        for a in atoms:
            v = _emit_index_atom(w, a, p)
            x, y = match_lanes(w, [term, v])
            term = v if term.text == "1" else w.t.make(f"mul nsw {x}, {y.text}", INDEX, x.lanes)
        if total is None:
            total = term
        else:
            x, y = match_lanes(w, [total, term])
            total = w.t.make(f"add nsw {x}, {y.text}", INDEX, x.lanes)
    return total or number(0, INDEX)


def _emit_index_atom(w: Writer, a: Expr, p: TilePosition) -> Value:
    match a:
        case Axis() if a == p.lane_axis and p.lanes:
            begin = p.axis_values[a]
            steps = ", ".join(f"i64 {begin + k}" for k in range(p.lanes))
            return Value(f"<{steps}>", INDEX, p.lanes)
        case Axis() if a in p.axis_values:
            return number(p.axis_values[a], INDEX)
        case Axis():
            return w.loops[a]
        case Size(name):
            return w.sizes[name]
        case Apply() if a not in w.size_values and depends_on_sizes(a):
            with w.t.emit_at(w.t.entry):
                w.size_values[a] = _emit_index_function(w, a, TilePosition())
            return w.size_values[a]
        case Apply() if a in w.size_values:
            return w.size_values[a]
        case Index(found, bound):
            return _emit_clamped_index(w, emit_value(w, found, p), emit_index(w, bound, p))
    return _emit_index_function(w, a, p)


def _emit_index_function(w: Writer, a: Expr, p: TilePosition) -> Value:
    match a:
        case Apply("floordiv" | "mod" as fn, (x, y)):
            low = affine.interval(x)
            if low is not None and low[0] >= 0 and isinstance(y, Const):
                u, v = match_lanes(w, [emit_index(w, x, p), emit_index(w, y, p)])
                how = "udiv" if fn == "floordiv" else "urem"
                return w.t.make(f"{how} {u}, {v.text}", INDEX, u.lanes)
            u, v = match_lanes(w, [emit_index(w, x, p), emit_index(w, y, p)])
            n = int(y.value) if isinstance(y, Const) and low is None else 0
            if n > 0 and not n & (n - 1) and not u.lanes:
                how = f"ashr {u}, {n.bit_length() - 1}" if fn == "floordiv" else f"and {u}, {n - 1}"
                return w.t.make(how, INDEX, 0)
            rest = emit_function(w.t, "mod", [u, v], INDEX)
            if fn == "mod":
                return rest
            whole = w.t.make(f"sub {u}, {rest.text}", INDEX, u.lanes)
            return emit_function(w.t, "div", [whole, v], INDEX)
        case Apply("min" | "max" as fn, args):
            return emit_function(
                w.t, fn, match_lanes(w, [emit_index(w, x, p) for x in args]), INDEX
            )
    raise NotImplementedError(f"index {a}")


def _emit_clamped_index(w: Writer, i: Value, bound: Value) -> Value:
    """Emit an element used as an index: negative ones count from the end, out-of-range ones are
    clamped."""
    if i.dtype == U32 and i.lanes and bound.text.isdecimal():
        # in 32 bits, which gather instructions take
        last = number(int(bound.text) - 1, U32, i.lanes)
        return emit_cast(w.t, emit_function(w.t, "min", [i, last], U32), INDEX)
    i = emit_cast(w.t, i, INDEX)
    i, bound = match_lanes(w, [i, bound])
    last = w.t.make(f"sub {bound}, {number(1, INDEX, i.lanes).text}", INDEX, i.lanes)
    zero = number(0, INDEX, i.lanes)
    low = w.t.make(f"icmp slt {i}, {zero.text}", BOOL, i.lanes)
    moved = w.t.make(f"add {i}, {bound.text}", INDEX, i.lanes)
    i = w.t.make(f"select {low}, {moved}, {i}", INDEX, i.lanes)
    return emit_function(w.t, "max", [emit_function(w.t, "min", [i, last], INDEX), zero], INDEX)


# --- memory ---


def emit_load(w: Writer, buffer: Tensor, index: Sequence[Expr], p: TilePosition) -> Value:
    """Emit a load at a position: a vector, or a scalar if all lanes read the same element."""
    if w.instructions == AVX512_VBMI and p.lanes and p.guard is None:
        load = Load(buffer, tuple(index), buffer.dtype)
        byte = match_byte_lookup(load)
        if byte is not None and (x := emit_value(w, byte, p)).lanes:
            return emit_byte_lookup(w, load, x)
    if buffer in w.registers:
        slot, lanes = register_slot(w, buffer, index, p)
        out = Value("", buffer.dtype, lanes)
        return w.t.make(f"load {out.type}, ptr {slot}", buffer.dtype, lanes)
    found = address(buffer, index, p)
    key: tuple[object, ...]
    if found is None or (found.lane_stride not in (0, 1) and p.lanes):
        key = _load_key(buffer, index, p)
        if key not in w.known_values and not (
            found and _emit_transposed_loads(w, buffer, index, p)
        ):
            w.known_values[key] = emit_gather(w, buffer, index, p, emit_index)
    else:
        key = (buffer, found, p.lanes if found.lane_stride else 0, p.guard)
        if key not in w.known_values:
            w.known_values[key] = _emit_vector_load(w, buffer, found, p)
    return w.known_values[key]


def _load_key(buffer: Tensor, index: Sequence[Expr], p: TilePosition) -> tuple[object, ...]:
    return (buffer, tuple(index), tuple(p.axis_values.items()), p.lanes, p.guard)


def _emit_transposed_loads(
    w: Writer, buffer: Tensor, index: Sequence[Expr], p: TilePosition
) -> bool:
    """Load a tile along another axis, if its elements are contiguous along that, and transpose it
    in registers. True if done; the vectors are then in `w.known_values`."""
    if p.guard is not None or p.lane_axis is None or p.lanes < 2 or buffer.dtype == BOOL:
        return False
    for m, size in w.tile_extents.items():
        fits = MIN_TRANSPOSE_ROWS <= size <= MAX_TRANSPOSE_ROWS and not size & (size - 1)
        if m == p.lane_axis or not fits or (size < p.lanes and p.lanes & (p.lanes - 1)):
            continue
        along = [
            TilePosition(
                {**p.axis_values, m: 0, p.lane_axis: p.axis_values[p.lane_axis] + j}, m, size
            )
            for j in range(p.lanes)
        ]
        found = [address(buffer, index, each) for each in along]
        if any(f is None or f.lane_stride != 1 for f in found):
            continue
        rows = [
            _emit_vector_load(w, buffer, f, q)
            for f, q in zip(found, along, strict=True)
            if f is not None
        ]
        rows += [Value("poison", buffer.dtype, size)] * (size - p.lanes)
        for k, v in enumerate(transpose_vectors(w.t, concat_vectors(w.t, rows, size))):
            here = TilePosition({**p.axis_values, m: k}, p.lane_axis, p.lanes)
            w.known_values[_load_key(buffer, index, here)] = first_lanes(w.t, v, p.lanes)
        return True
    return False


def _emit_vector_load(w: Writer, buffer: Tensor, target: Address, p: TilePosition) -> Value:
    """Emit a load of contiguous elements, or of one element for all lanes."""
    t, kind, guard = w.t, buffer.dtype, p.guard
    memory, size = memory_type(kind), max(kind.bits // 8, 1)
    lanes = p.lanes if target.lane_stride else 0
    if guard is None:
        shape = f"<{lanes} x {memory}>" if lanes else memory
        at = emit_pointer(w, buffer, target.loop_terms, target.constant)
        if buffer in w.prefetches and lanes:
            emit_prefetch(w, buffer, target)
        return loaded_value(t, f"load {shape}, ptr {at}, align {size}", kind, lanes)
    if not lanes:
        place = _emit_offset(w, target.loop_terms, target.constant)
        return emit_scalar_loads(w, buffer, place, guard)
    shape, mask = f"<{lanes} x {memory}>", t.splat(guard, lanes)
    at = emit_pointer(w, buffer, target.loop_terms, target.constant, inbounds="")
    name = f"llvm.masked.load.v{lanes}{memory_suffix(kind)}.p0"
    t.declared.add(f"declare {shape} @{name}(ptr, <{lanes} x i1>, {shape})")
    text = f"call {shape} @{name}(ptr align {size} {at}, {mask}, {shape} zeroinitializer)"
    return loaded_value(t, text, kind, lanes)


def emit_prefetch(w: Writer, buffer: Tensor, target: Address) -> None:
    """Emit a prefetch into L2: L1 is full of what is used now."""
    how = w.prefetches[buffer]
    if any(a not in w.loops for a, _ in how.repeat_loops) or not all(
        first <= w.unrolled_values.get(a, -1) < last for a, first, last in how.fresh_elements
    ):
        return  # not fresh, or planned for a read in other loops
    terms, constant = fold_unrolled_terms(target.loop_terms, target.constant, w.unrolled_values)
    soon = prefetch_address(how, terms, constant, max(buffer.dtype.bits // 8, 1))
    if soon is None:
        return
    at = emit_pointer(w, buffer, *soon, inbounds="")
    w.t.declared.add("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
    w.t.line(f"call void @llvm.prefetch.p0(ptr {at}, i32 0, i32 2, i32 1)")


def _emit_offset(w: Writer, loop_terms: LoopTerms, constant: int) -> Value:
    total = number(constant, INDEX)
    for atoms, c in loop_terms:
        term = number(c, INDEX)
        for a in atoms:
            v = _emit_index_atom(w, a, TilePosition())
            term = v if term.text == "1" else w.t.make(f"mul nsw {term}, {v.text}", INDEX, 0)
        total = term if total.text == "0" else w.t.make(f"add nsw {total}, {term.text}", INDEX, 0)
    return total


def _emit_nested_address(w: Writer, buffer: Tensor, loop_terms: LoopTerms) -> str:
    """Emit an address with symbolic sizes: each loop adds, where it begins, what it changes."""
    memory, at = memory_type(buffer.dtype), w.pointers[buffer]
    begins = {a: w.loop_begins[v] for a, v in w.loops.items() if v in w.loop_begins}
    for x in terms_by_depth(loop_terms, [*begins]):
        counters = [w.loops[a].text for a in (x.loop, *x.axes) if a is not None]
        key = at, x.factor, x.atoms, *counters
        if x.loop is None or key not in w.outer_addresses:
            with w.t.emit_at(w.t.lines if x.loop is None else begins[x.loop]):
                place = _emit_size(w, x.factor)
                for e in x.atoms:
                    v = _emit_index_atom(w, e, TilePosition())
                    place = w.t.make(f"mul nsw {place}, {v.text}", INDEX, 0)
                here = f"%{w.t.fresh()}"
                w.t.line(f"{here} = getelementptr {memory}, ptr {at}, {place}")
                w.outer_addresses[key] = here
        at = w.outer_addresses[key]
    return at


def _emit_size(w: Writer, e: Expr) -> Value:
    """Emit an expression of sizes once, before all loops."""
    if isinstance(e, Const):
        return number(int(e.value), INDEX)
    if e not in w.size_values:
        with w.t.emit_at(w.t.entry):
            w.size_values[e] = emit_index(w, e, TilePosition())
    return w.size_values[e]


def emit_pointer(
    w: Writer, buffer: Tensor, loop_terms: LoopTerms, constant: int, inbounds: str = " inbounds"
) -> str:
    """Emit the address of a buffer's element: loop terms plus a constant, in elements."""
    memory, base = memory_type(buffer.dtype), w.pointers[buffer]
    loop_terms, constant = fold_unrolled_terms(loop_terms, constant, w.unrolled_values)
    if loop_terms:
        key = ("pointer", buffer, loop_terms)
        if key not in w.known_values:
            if w.sizes:
                at = _emit_nested_address(w, buffer, loop_terms)
            else:
                place = _emit_offset(w, loop_terms, 0)
                at = f"%{w.t.fresh()}"
                w.t.line(f"{at} = getelementptr{inbounds} {memory}, ptr {base}, {place}")
            w.known_values[key] = Value(at, INDEX)
        base = w.known_values[key].text
    if not constant:
        return base
    at = f"%{w.t.fresh()}"
    w.t.line(f"{at} = getelementptr{inbounds} {memory}, ptr {base}, i64 {constant}")
    return at
