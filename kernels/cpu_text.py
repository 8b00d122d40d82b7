"""The tile-level form as LLVM's text: a tile is vectors along its last axis, unrolled over others,
and a register each where it is one of the kernel's own."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import product
from math import prod

from superopt.kernels.address import Place
from superopt.kernels.cpu_values import Writer, get, put, tabled, value
from superopt.kernels.functions import across, applied, cast, fused
from superopt.kernels.prefetch import ahead
from superopt.kernels.text import Text, Value, number
from superopt.kernels.tile import For, Kernel, Stmt, Store, Update
from superopt.kernels.walk import loads
from superopt.te.dtype import INDEX
from superopt.te.expr import Tensor
from superopt.te.fn import FOLDS
from superopt.te.node import Apply, Axis, Expr


def written(kernel: Kernel, width: int) -> str:
    """A function `void NAME(ptr, ..., ptr workspace, i64 chunk)` of a pointer for each parameter,
    and one to `workspace(kernel)` bytes, 64 of which are aligned. A kernel within parallel
    loops is called for each of their steps (`chunks(kernel)`). width: bytes of a vector."""
    w = Writer(Text(scales=width == AVX512), width, tables=dict(kernel.tables))
    for n, p in enumerate(kernel.params):
        w.pointers[p] = f"%p{n}"
    for n, (t, begin) in enumerate(_laid_out(kernel)[0]):
        w.pointers[t] = f"%local{n}"
        w.t.line(f"%local{n} = getelementptr i8, ptr %workspace, i64 {begin}")
    w.registers = {t: {} for t, scope in kernel.scratch if scope == "register"}
    w.bits = _widest(kernel, w.registers)
    w.ahead = ahead(kernel)
    loops, body = _shared(kernel)
    rest = Value("%chunk", INDEX)
    for x in reversed(loops[1:]):
        size = number(_extent(x), INDEX)
        w.loops[x] = w.t.make(f"urem {rest}, {size.text}", INDEX, 0)
        rest = w.t.make(f"udiv {rest}, {size.text}", INDEX, 0)
    if loops:
        w.loops[loops[0]] = rest
    _body(w, body)
    args = ", ".join(f"ptr noalias %p{n}" for n in range(len(kernel.params)))
    head = f"define void @{kernel.name}({args}, ptr noalias %workspace, i64 %chunk) {{\nentry:"
    return "\n".join([*sorted(w.t.declared), head, *w.t.entry, *w.t.lines, "  ret void", "}", ""])


def chunks(kernel: Kernel) -> int:
    """How many calls make up the kernel, in any order and at once."""
    return prod(_extent(x) for x in _shared(kernel)[0])


# How a processor does the steps of loops: of those around all of a kernel in calls, of those that
# are written out as told, and of all others, a GPU's too, one after the other.
CHUNKED = ("parallel", "block")
LOOPS = ("serial", "thread", *CHUNKED)


def _shared(kernel: Kernel) -> tuple[list[Axis], tuple[Stmt, ...]]:
    """The axes of the parallel loops that all of a kernel is in, and what is inside them."""
    axes, body = [], kernel.body
    while True:
        match body:
            case (For(axis, inner, kind),) if kind in CHUNKED:
                axes.append(axis)
                body = inner
            case _:
                return axes, body


def workspace(kernel: Kernel) -> int:
    """The bytes of what is scratch in memory."""
    return _laid_out(kernel)[1]


def _widest(kernel: Kernel, registers: Collection[Tensor]) -> int:
    """The bits of the largest element that shares a tile with a register: all of these have as many
    lanes, so that a register is one wherever it is read."""
    found = [t.dtype.bits for t in registers]
    stack = list(kernel.body)
    while stack:
        match stack.pop():
            case For(_, body):
                stack += body
            case Store(buffer, _, value_) | Update(buffer, _, _, value_):
                if any(x.tensor in registers for x in loads(value_)):
                    found.append(buffer.dtype.bits)
    return max(found, default=8)


APART = 4  # sums of vectors at a time
AVX512 = 64  # bytes of a vector


def _bytes(t: Tensor) -> int:
    return prod(d for d in t.shape if isinstance(d, int)) * max(t.dtype.bits // 8, 1)


def _laid_out(kernel: Kernel) -> tuple[list[tuple[Tensor, int]], int]:
    """Where each local buffer begins, and where the last one ends."""
    out: list[tuple[Tensor, int]] = []
    end = 0
    for t, scope in kernel.scratch:
        if scope == "local":
            out.append((t, end))
            end += -(-_bytes(t) // 64) * 64
    return out, end


def _body(w: Writer, body: Sequence[Stmt]) -> None:
    for s in body:
        match s:
            case For():
                _loop(w, s)
            case Store():
                _store(w, s)
            case Update():
                _update(w, s)


def _loop(w: Writer, s: For) -> None:
    t, extent = w.t, _extent(s.axis)
    if s.kind == "unroll":
        for k in range(extent):
            w.loops[s.axis] = number(k, INDEX)
            w.unrolled[s.axis] = k
            w.known.clear()
            _body(w, s.body)
        w.known.clear()
        return
    if s.kind not in LOOPS:
        raise NotImplementedError(f"a processor has no {s.kind} loops, as {s.axis.name} is")
    if not extent:
        return
    n = t.fresh("loop")
    t.entry.append(f"  %{n}.at = alloca i64")
    t.line(f"store i64 0, ptr %{n}.at")
    t.line(f"br label %{n}")
    t.lines.append(f"{n}:")
    w.loops[s.axis] = counter = t.make(f"load i64, ptr %{n}.at", INDEX, 0)
    w.known.clear()
    _body(w, s.body)
    w.known.clear()
    t.line(f"%{n}.next = add nuw nsw {counter}, 1")
    t.line(f"store i64 %{n}.next, ptr %{n}.at")
    t.line(f"%{n}.more = icmp ult i64 %{n}.next, {extent}")
    t.line(f"br i1 %{n}.more, label %{n}, label %{n}.end")
    t.lines.append(f"{n}.end:")


def _extent(axis: Axis) -> int:
    assert isinstance(axis.extent, int)
    return axis.extent


def _places(w: Writer, axes: Sequence[Axis], buffer: Tensor, *read: Expr) -> Iterator[Place]:
    """Each vector of a tile of `buffer`, that is made of what is read."""
    if not axes:
        yield Place()
        return
    *outer, last = axes
    most = _most(w, buffer, *read)
    for where in product(*(range(_extent(a)) for a in outer)):
        at = dict(zip(outer, where, strict=True))
        for begin in range(0, _extent(last), most):
            lanes = min(most, _extent(last) - begin)
            yield Place({**at, last: begin}, last, lanes)


def _most(w: Writer, buffer: Tensor, *read: Expr) -> int:
    """The lanes of a vector."""
    held = buffer in w.registers or any(x.tensor in w.registers for e in read for x in loads(e))
    bits = w.bits if held else max(buffer.dtype.bits, 8)
    return max(w.width * 8 // bits, 1)


def _store(w: Writer, s: Store) -> None:
    w.tile = {a: _extent(a) for a in s.axes}
    for p in _places(w, s.axes, s.buffer, s.value):
        put(w, s.buffer, s.index, w.t.splat(value(w, s.value, p), p.lanes), p)
    w.tile = {}
    w.known.clear()  # of what was read before


def _folded(w: Writer, s: Update, axis: Axis) -> None:
    """A sum over vectors: these are added to each other, and then their lanes."""
    fn, kind = FOLDS[s.fn], s.buffer.dtype
    totals: list[Value] = []  # several, that need not wait for each other
    ends: list[Value] = []
    most = _most(w, s.buffer, s.value)
    for n, p in enumerate(_places(w, (axis,), s.buffer, s.value)):
        more = cast(w.t, w.t.splat(value(w, s.value, p), p.lanes), kind)
        if p.lanes < most:
            ends.append(across(w.t, fn, more) if p.lanes > 1 else _only(w, more))
        elif n < APART:
            totals.append(more)
        else:
            totals[n % APART] = applied(w.t, fn, [more, totals[n % APART]], kind)
    while len(totals) > 1:
        totals = [*totals[2:], applied(w.t, fn, totals[:2], kind)]
    if totals:
        ends.append(across(w.t, fn, totals[0]))
    new = get(w, s.buffer, s.index, Place())
    for v in ends:
        new = applied(w.t, fn, [new, v], kind)
    put(w, s.buffer, s.index, new, Place())
    if s.buffer not in w.registers:
        w.known.clear()


def _only(w: Writer, v: Value) -> Value:
    return w.t.make(f"extractelement {v}, i64 0", v.dtype, 0) if v.lanes else v


def _update(w: Writer, s: Update) -> None:
    match s.axes, s.over:
        case (), (axis,) if _extent(axis) > 1:
            _folded(w, s, axis)
            return
    for k in product(*(range(_extent(a)) for a in s.over)):
        inner = dict(zip(s.over, k, strict=True))
        for p in _places(w, s.axes, s.buffer, s.value):
            p = Place({**p.at, **inner}, p.lane, p.lanes)
            old = w.t.splat(get(w, s.buffer, s.index, p), p.lanes)
            match s.fn, s.value:
                case "sum", Apply("mul", (a, b), dtype) if dtype.is_float and dtype.bits >= 32:
                    factor = tabled(w, a, p)
                    if factor == 0:
                        continue
                    y = w.t.splat(value(w, b, p), p.lanes)
                    if factor in (1, -1):
                        how = "add" if factor == 1 else "sub"
                        new = applied(w.t, how, [old, y], dtype)
                    else:
                        new = fused(w.t, w.t.splat(value(w, a, p), p.lanes), y, old)
                case _:
                    more = w.t.splat(value(w, s.value, p), p.lanes)
                    more = cast(w.t, more, s.buffer.dtype)
                    # In this order a largest element waits for less of what it was before.
                    new = applied(w.t, FOLDS[s.fn], [more, old], s.buffer.dtype)
            put(w, s.buffer, s.index, new, p)
    if s.buffer not in w.registers:
        w.known.clear()
