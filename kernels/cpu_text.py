"""Translate the tile-level form to LLVM text. A tile is vectors along its last axis, unrolled over
the others; tiles in scope "register" are allocas, which LLVM promotes to registers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import product
from math import prod

from superopt.kernels.address import Place
from superopt.kernels.cpu_fold import folded, places
from superopt.kernels.cpu_store import put
from superopt.kernels.cpu_values import get, value
from superopt.kernels.cpu_window import largest, window
from superopt.kernels.cpu_writer import Writer, tabled
from superopt.kernels.functions import applied, cast, fused, joined
from superopt.kernels.prefetch import ahead
from superopt.kernels.text import Text, Value, number
from superopt.kernels.tile import For, Kernel, Stmt, Store, Update
from superopt.te.dtype import INDEX
from superopt.te.expr import Tensor
from superopt.te.fn import FOLDS
from superopt.te.node import Apply, Axis
from superopt.te.walk import loads


def written(kernel: Kernel, width: int) -> str:
    """Return a function `void NAME(ptr, ..., ptr workspace, i64 chunk)`: a pointer for each
    parameter, and one to `workspace_bytes(kernel)` bytes, aligned to 64. A kernel within parallel
    loops is called once for each iteration (`chunk_count(kernel)`). width: bytes of a vector."""
    w = Writer(Text(scales=width == AVX512), width, tables=dict(kernel.tables))
    for n, p in enumerate(kernel.params):
        w.pointers[p] = f"%p{n}"
    for n, (t, begin) in enumerate(_laid_out(kernel)[0]):
        w.pointers[t] = f"%local{n}"
        w.t.line(f"%local{n} = getelementptr i8, ptr %workspace, i64 {begin}")
    w.registers = {t: {} for t, scope in kernel.scratch if scope == "register"}
    w.bits = _widest(kernel, w.registers)
    w.ahead = ahead(kernel, width)
    loops, body = _shared(kernel)
    rest = Value("%chunk", INDEX)
    for x in reversed(loops[1:]):
        size = number(x.size, INDEX)
        w.loops[x] = w.t.make(f"urem {rest}, {size.text}", INDEX, 0)
        rest = w.t.make(f"udiv {rest}, {size.text}", INDEX, 0)
    if loops:
        w.loops[loops[0]] = rest
    _body(w, body)
    args = ", ".join(f"ptr noalias %p{n}" for n in range(len(kernel.params)))
    head = f"define void @{kernel.name}({args}, ptr noalias %workspace, i64 %chunk) {{\nentry:"
    return "\n".join([*sorted(w.t.declared), head, *w.t.entry, *w.t.lines, "  ret void", "}", ""])


def chunks(kernel: Kernel) -> int:
    """Return the number of calls that make up the kernel; they may run concurrently, in any
    order."""
    return prod(x.size for x in _shared(kernel)[0])


# How loops run on a CPU: those around the whole kernel are calls, `unroll` loops are unrolled, all
# others run serially, GPU kinds included.
CHUNKED = ("parallel", "block")
LOOPS = ("serial", "thread", *CHUNKED)


def _shared(kernel: Kernel) -> tuple[list[Axis], tuple[Stmt, ...]]:
    """Return the axes of the parallel loops around the whole kernel, and their body."""
    axes, body = [], kernel.body
    while True:
        match body:
            case (For(axis, inner, kind),) if kind in CHUNKED:
                axes.append(axis)
                body = inner
            case _:
                return axes, body


def workspace(kernel: Kernel) -> int:
    """Return the bytes of local scratch buffers."""
    return _laid_out(kernel)[1]


def _widest(kernel: Kernel, registers: Collection[Tensor]) -> int:
    """Return the bits of the largest element that shares a tile with a register buffer. It fixes
    the number of lanes of all of these, so that a register is one vector wherever it is used."""
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


AVX512 = 64  # bytes of a vector


def _bytes(t: Tensor) -> int:
    return prod(d for d in t.shape if isinstance(d, int)) * max(t.dtype.bits // 8, 1)


def _laid_out(kernel: Kernel) -> tuple[list[tuple[Tensor, int]], int]:
    """Return the offset of each local buffer, and their total size."""
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
    if s.until is not None:
        raise NotImplementedError(f"the loop {s.axis.name} ends at {s.until}")
    t, extent = w.t, s.axis.size
    if (found := window(s)) is not None and largest(w, found):
        return
    if s.kind == "unroll":
        for k in range(extent):
            w.loops[s.axis] = number(k, INDEX)
            w.unrolled[s.axis] = k
            w.known.clear()
            _body(w, s.body)
        w.known.clear()
        return
    if s.kind not in LOOPS:
        raise NotImplementedError(f"the CPU target does not support {s.kind} loops: {s.axis.name}")
    if not extent:
        return
    with t.steps(extent) as w.loops[s.axis]:
        w.known.clear()
        _body(w, s.body)
        w.known.clear()


def _store(w: Writer, s: Store) -> None:
    w.tile = {a: a.size for a in s.axes}
    for p in places(w, s.axes, s.buffer, s.value):
        put(w, s.buffer, s.index, w.t.splat(value(w, s.value, p), p.lanes), p)
    w.tile = {}
    w.known.clear()  # loads of this buffer


def _update(w: Writer, s: Update) -> None:
    match s.axes, s.over:
        case (), (axis,) if axis.size > 1:
            folded(w, s, axis)
            return
    for k in product(*(range(a.size) for a in s.over)):
        inner = dict(zip(s.over, k, strict=True))
        for p in places(w, s.axes, s.buffer, s.value):
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
                    new = joined(w.t, FOLDS[s.fn], [more], old)
            put(w, s.buffer, s.index, new, p)
    if s.buffer not in w.registers:
        w.known.clear()
