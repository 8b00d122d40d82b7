"""Translate the tile-level form to LLVM text. A tile is vectors along its last axis, unrolled over
the others; tiles in scope "register" are allocas, which LLVM promotes to registers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import ExitStack
from itertools import product
from math import prod

from superopt.kernels.llvm.address import TilePosition
from superopt.kernels.llvm.builder import TextBuilder, Value, number
from superopt.kernels.llvm.dot_products.amx import (
    DELAYED_BLOCKS,
    SumLoops,
    close_tiles,
    emit_tile_products,
    emit_tile_zeros,
    match_looped_rows,
    match_sum_loops,
    open_tiles,
    store_tiles,
)
from superopt.kernels.llvm.dot_products.bytes import emit_dot_bytes
from superopt.kernels.llvm.dot_products.products import (
    DOT_BYTES,
    TILE_BYTES,
    kernel_product,
    match_dot_product,
)
from superopt.kernels.llvm.dot_products.vectors import emit_dot_products
from superopt.kernels.llvm.functions import emit_cast, emit_fma, emit_function
from superopt.kernels.llvm.lanes import emit_fold
from superopt.kernels.llvm.prefetch import plan_prefetches
from superopt.kernels.llvm.reductions import emit_reduction, vector_positions
from superopt.kernels.llvm.stores import emit_store
from superopt.kernels.llvm.values import emit_index, emit_load, emit_value
from superopt.kernels.llvm.window_reductions import emit_window_extrema, match_window
from superopt.kernels.llvm.writer import Writer, load_sizes, table_value
from superopt.kernels.loops.tile import For, Kernel, Stmt, Store, Update, bound_value
from superopt.kernels.processor import AMX, AVX512_BF16, TILE_INSTRUCTIONS
from superopt.te.analysis.walk import loads
from superopt.te.expr import index as te_index
from superopt.te.expr.dtype import BOOL, I64, INDEX
from superopt.te.expr.functions import REDUCTION_COMBINERS
from superopt.te.expr.node import Apply, Axis
from superopt.te.expr.size_ranges import SizeRanges
from superopt.te.expr.tensor import Tensor


def kernel_text(kernel: Kernel, width: int) -> str:
    """Return a function `void NAME(ptr, ..., ptr workspace, i64 chunk)`: a pointer for each
    parameter, and one to `workspace_bytes(kernel)` bytes, aligned to 64. A kernel within parallel
    loops is called once for each iteration (`chunk_count(kernel)`). width: bytes of a vector."""
    builder = TextBuilder(
        has_avx512=width == AVX512_BYTES, has_bf16=kernel.instructions in (AMX, AVX512_BF16)
    )
    w = Writer(builder, width, tables=dict(kernel.tables))
    for n, p in enumerate(kernel.params):
        w.pointers[p] = f"%p{n}"
    if kernel.sizes:
        with w.t.emit_at(w.t.entry):
            load_sizes(w, kernel.sizes, f"%p{len(kernel.params)}")
    for n, (t, begin) in enumerate(_workspace_layout(kernel)[0]):
        w.pointers[t] = f"%local{n}"
        at = emit_index(w, te_index.as_index(begin), TilePosition())
        w.t.line(f"%local{n} = getelementptr i8, ptr %workspace, {at}")
    w.registers = {t: {} for t, scope in kernel.scratch if scope == "register"}
    w.widest_bits = _widest_element_bits(kernel, w.registers)
    dot_product, tiles = kernel_product(kernel), ""
    w.instructions = kernel.instructions
    w.prefetches = plan_prefetches(
        kernel, width, [] if dot_product is None else [dot_product.b.tensor]
    )
    if dot_product is not None:
        w.product_update = dot_product.update
        if kernel.instructions in TILE_INSTRUCTIONS:
            tiles = open_tiles(w, dot_product, kernel.name)
    loops, body = _parallel_prefix(kernel)
    _emit_chunk_counters(w, loops)
    _emit_body(w, body)
    if tiles:
        close_tiles(w)
    count = len(kernel.params) + bool(kernel.sizes)
    args = ", ".join(f"ptr noalias %p{n}" for n in range(count))
    head = f"define void @{kernel.name}({args}, ptr noalias %workspace, i64 %chunk) {{\nentry:"
    lines = [*sorted(w.t.declared), *([tiles] if tiles else []), head, *w.t.text_lines()]
    return "\n".join([*lines, "  ret void", "}", ""])


def chunk_count(kernel: Kernel) -> int:
    """Return the number of calls that make up the kernel; they may run concurrently, in any
    order."""
    return prod(x.size for x in _parallel_prefix(kernel)[0])


# How loops run on a CPU: those around the whole kernel are calls, `unroll` loops are unrolled, all
# others run serially, GPU kinds included.


def _parallel_prefix(kernel: Kernel) -> tuple[list[Axis], tuple[Stmt, ...]]:
    """Return the axes of the parallel loops around the whole kernel, and their body."""
    axes, body = [], kernel.body
    while True:
        match body:
            case (For(axis, inner, "parallel"),):
                axes.append(axis)
                body = inner
            case _:
                return axes, body


def _emit_chunk_counters(w: Writer, loops: Sequence[Axis]) -> None:
    """Emit the counters of parallel loops, which the number of the chunk determines.

    Quotients by symbolic sizes are frozen: LLVM's loop strength reduction leaves addresses alone
    that contain a division whose divisor may be 0, and they were computed with products in each
    step of inner loops.
    """
    rest = Value("%chunk", INDEX)
    for x in reversed(loops[1:]):
        size = emit_index(w, te_index.as_index(x.extent), TilePosition())
        found = [w.t.make(f"{how} {rest}, {size.text}", INDEX, 0) for how in ("urem", "udiv")]
        if not isinstance(x.extent, int):
            found = [w.t.make(f"freeze {v}", INDEX, 0) for v in found]
        w.loops[x], rest = found
    if loops:
        w.loops[loops[0]] = rest
    if w.sizes:
        w.loop_begins |= dict.fromkeys(w.loops.values(), w.t.mark())


def workspace_bytes(kernel: Kernel) -> int:
    """Return the bytes of local scratch buffers."""
    return _workspace_layout(kernel)[1]


def _widest_element_bits(kernel: Kernel, registers: Collection[Tensor]) -> int:
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


AVX512_BYTES = 64  # bytes of a vector


def _buffer_bytes(t: Tensor) -> int:
    return prod(t.sizes) * max(t.dtype.bits // 8, 1)


def _workspace_layout(kernel: Kernel) -> tuple[list[tuple[Tensor, int]], int]:
    """Return the offset of each local buffer, and their total size."""
    out: list[tuple[Tensor, int]] = []
    end = 0
    for t, scope in kernel.scratch:
        if scope == "local":
            out.append((t, end))
            end += -(-_buffer_bytes(t) // 64) * 64
    return out, end


def _emit_body(w: Writer, body: Sequence[Stmt]) -> None:
    for s in body:
        match s:
            case For():
                _emit_loop(w, s)
            case Store() | Update() if s.limits:
                raise NotImplementedError(f"a masked tile: {s}")
            case Store():
                _emit_tile_store(w, s)
            case Update():
                _emit_update(w, s)


def _emit_loop(w: Writer, s: For) -> None:
    if s.until is not None or s.begin is not None:
        if s.kind not in ("serial", "parallel"):
            raise NotImplementedError(f"the {s.kind} loop {s.axis.name} ends at {s.until}")
        if (value := bound_value(s)) is not None:
            with w.bind(s.axis, emit_index(w, value, TilePosition())):
                _emit_body(w, s.body)
            return
        begin = "0" if s.begin is None else emit_index(w, s.begin, TilePosition()).text
        with w.loop(s.axis, _emit_end(w, s), may_be_empty=True, begin=begin):
            _emit_body(w, s.body)
        return
    if (found := match_window(s)) is not None and emit_window_extrema(w, found):
        return
    if s.kind == "unroll":
        for k in range(s.axis.size):
            with w.unrolled_step({s.axis: k}):
                _emit_body(w, s.body)
        return
    if s.kind not in ("serial", "parallel"):
        raise NotImplementedError(f"the CPU target does not support {s.kind} loops: {s.axis.name}")
    if s.axis.extent == 0:
        return
    if (sums := match_sum_loops(w, s)) is not None:
        _emit_delayed_epilogues(w, sums)
        return
    extent = te_index.as_index(s.axis.extent)
    may_be_empty = not SizeRanges().is_nonnegative(te_index.as_index(extent - 1))
    with w.loop(s.axis, emit_index(w, extent, TilePosition()).text, may_be_empty):
        _emit_body(w, s.body)


def _emit_delayed_epilogues(w: Writer, found: SumLoops) -> None:
    """Emit loops over blocks of AMX's sums as one, some blocks at a time: the products of all of
    these, then the epilogues."""
    sums = w.tile_sums
    assert sums is not None
    extent = prod(a.size for a in found.axes)
    some = min(DELAYED_BLOCKS, extent)
    groups, blocks = Axis("groups", -(-extent // some)), Axis("blocks", extent)
    with w.loop(groups, str(groups.size)):
        begin = w.t.make(f"mul nuw nsw {w.loops[groups]}, {some}", INDEX, 0)
        end = w.t.make(f"add nuw nsw {begin}, {some}", INDEX, 0)
        end = w.t.call("llvm.umin.i64", [end, number(extent, INDEX)], INDEX)
        for body in (found.products, found.epilogue):
            with w.loop(blocks, end.text, begin=begin.text):
                place = rest = w.loops[blocks]
                place = w.t.make(f"sub nuw nsw {place}, {begin.text}", INDEX, 0)
                place = w.t.make(f"mul nuw nsw {place}, {sums.count * TILE_BYTES}", INDEX, 0)
                sums.block_offset = place.text
                with ExitStack() as bound:
                    for axis in reversed(found.axes):
                        value = w.t.make(f"urem {rest}, {axis.size}", INDEX, 0)
                        rest = w.t.make(f"udiv {rest}, {axis.size}", INDEX, 0)
                        bound.enter_context(w.bind(axis, value))
                    _emit_body(w, body)
                    store_tiles(w, [sums.buffer])
    sums.block_offset = ""


def _emit_end(w: Writer, s: For) -> str:
    """Emit the number of iterations of a loop that ends at a value."""
    extent = emit_index(w, te_index.as_index(s.axis.extent), TilePosition()).text
    if s.until is None:
        return extent
    until = emit_cast(w.t, emit_value(w, s.until, TilePosition()), I64).text
    is_less = w.t.make(f"icmp slt i64 {until}, {extent}", BOOL, 0)
    return w.t.make(f"select {is_less}, i64 {until}, i64 {extent}", I64, 0).text


def _emit_tile_store(w: Writer, s: Store) -> None:
    if w.tile_sums is not None:
        if s.buffer is w.tile_sums.buffer:
            emit_tile_zeros(w, s)
            return
        store_tiles(w, [x.tensor for x in loads(s.value)])
        first = next(vector_positions(w, s.axes, s.buffer, s.value))
        if (rows := match_looped_rows(w, s, first)) is not None:
            with w.loop(rows, str(rows.size)):
                _emit_vectors(w, s, [a for a in s.axes if a != rows])
            return
    _emit_vectors(w, s, s.axes)


def _emit_vectors(w: Writer, s: Store, axes: Sequence[Axis]) -> None:
    """Emit a store of a tile over some of its axes; loops have the others."""
    w.tile_extents = {a: a.size for a in axes}
    for p in vector_positions(w, axes, s.buffer, s.value):
        emit_store(w, s.buffer, s.index, w.t.splat(emit_value(w, s.value, p), p.lanes), p)
    w.tile_extents = {}
    w.known_values.clear()  # loads of this buffer


def _emit_update(w: Writer, s: Update) -> None:
    if s is w.product_update:
        found = match_dot_product(s)
        assert found is not None
        emit_dot_products(w, found) if w.tile_sums is None else emit_tile_products(w, found)
        return
    match s.axes, s.over:
        case (), (axis,) if axis.size > 1:
            emit_reduction(w, s, axis)
            return
    for k in product(*(range(a.size) for a in s.over)):
        inner = dict(zip(s.over, k, strict=True))
        for p in vector_positions(w, s.axes, s.buffer, s.value):
            p = TilePosition({**p.axis_values, **inner}, p.lane_axis, p.lanes)
            old = w.t.splat(emit_load(w, s.buffer, s.index, p), p.lanes)
            match s.fn, s.value:
                case "sum", Apply("mul", (a, b), dtype) if dtype.is_float and dtype.bits >= 32:
                    factor = table_value(w, a, p)
                    if factor == 0:
                        continue
                    y = w.t.splat(emit_value(w, b, p), p.lanes)
                    if factor in (1, -1):
                        how = "add" if factor == 1 else "sub"
                        new = emit_function(w.t, how, [old, y], dtype)
                    else:
                        new = emit_fma(w.t, w.t.splat(emit_value(w, a, p), p.lanes), y, old)
                case "sum", Apply(fn, (a, b)) if fn == DOT_BYTES:
                    new = emit_dot_bytes(w, old, [emit_value(w, e, p) for e in (a, b)])
                case _:
                    more = w.t.splat(emit_value(w, s.value, p), p.lanes)
                    more = emit_cast(w.t, more, s.buffer.dtype)
                    new = emit_fold(w.t, REDUCTION_COMBINERS[s.fn], [more], old)
            emit_store(w, s.buffer, s.index, new, p)
    if s.buffer not in w.registers:
        w.known_values.clear()
