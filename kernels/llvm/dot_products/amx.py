"""Products by AMX. Tile registers are numbered here, not allocated by LLVM, which would
spill them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod

from superopt.kernels.llvm.address import LoopTerms, TilePosition, address
from superopt.kernels.llvm.dot_products.products import (
    LANES,
    PALETTE_BYTES,
    ROW_BYTES,
    TILE_BYTES,
    DotProduct,
)
from superopt.kernels.llvm.values import emit_pointer, emit_prefetch
from superopt.kernels.llvm.writer import TileSums, Writer
from superopt.kernels.loops.tile import For, Stmt, Store
from superopt.te.analysis.walk import index_axes, loads
from superopt.te.expr.node import Axis, Const, Load
from superopt.te.expr.tensor import Tensor

# Blocks of sums that are computed before the first one's epilogue: loads of what TILESTORED has
# just written wait until it is in the L1 cache.
DELAYED_BLOCKS = 4


def open_tiles(w: Writer, p: DotProduct, kernel_name: str) -> str:
    """Configure AMX's tiles where the kernel begins, for this thread, and let its sums be read from
    memory. Return the module's text of the configuration."""
    t = w.t
    memory = f"%{t.fresh('sums')}"
    w.tile_sums = TileSums(p.update.buffer, p.tile_count, memory)
    size = DELAYED_BLOCKS * p.tile_count * TILE_BYTES
    t.entry.append(f"  {memory} = alloca [{size} x i8], align 64")
    slots = w.registers[p.update.buffer] = {}
    lanes = min(LANES, w.width * 8 // w.widest_bits)
    for n, outer in enumerate(p.outer_positions()):
        for row, begin in product(range(p.m.size), range(0, LANES, lanes)):
            slot = f"%{t.fresh('sum')}"
            at = n * TILE_BYTES + row * ROW_BYTES + begin * ROW_BYTES // LANES
            t.entry.append(f"  {slot} = getelementptr i8, ptr {memory}, i64 {at}")
            slots[(*outer.values(), row, begin)] = slot
    bytes_text = ", ".join(f"i8 {x}" for x in p.palette())
    name = f"@{kernel_name}.tiles"
    t.entry.append(f"  %before = alloca [{PALETTE_BYTES} x i8], align 64")
    _call(w, "sttilecfg", "ptr %before", "ptr", at=t.entry)
    _call(w, "ldtilecfg", f"ptr {name}", "ptr", at=t.entry)
    return f"{name} = private constant [{PALETTE_BYTES} x i8] [{bytes_text}], align 64"


def close_tiles(w: Writer) -> None:
    """Configure the tiles as before, where the kernel ends: as another library left them, or
    released, so that the system has none to save when it switches threads."""
    _call(w, "ldtilecfg", "ptr %before", "ptr")


def emit_tile_zeros(w: Writer, s: Store) -> None:
    """Emit the first value of the sums."""
    assert w.tile_sums is not None
    if not (isinstance(s.value, Const) and not s.value.value):
        raise NotImplementedError(f"AMX tiles that begin at {s.value}")
    for n in range(w.tile_sums.count):
        _call(w, "tilezero", f"i8 {n}", "i8")
    w.tile_sums.is_stored = False
    w.tile_sums.around = next((a for a in reversed(w.loops) if a.extent != 1), None)


def emit_tile_products(w: Writer, p: DotProduct) -> None:
    """Emit the update by TDPBF16PS or TDPBUSD. What the loop around the sum reads once does not
    replace the other operand in the L1 cache: 128 x 768 x 768 takes 91 us instead of 123."""
    groups = p.groups
    assert groups is not None
    assert w.tile_sums is not None
    around = w.tile_sums.around
    of_a, of_b = p.tile_registers(p.a), p.tile_registers(p.b)
    loaded: set[int] = set()

    def load_tile(
        load: Load,
        of: Mapping[tuple[LoopTerms, int], int],
        axis: Axis,
        outer: Mapping[Axis, int],
    ) -> int:
        """Return the register of an operand's tile, which is loaded at its first use."""
        at = p.address(load, outer)
        number = of[at.loop_terms, at.constant]
        if number not in loaded:
            loaded.add(number)
            stride = p.stride(load, axis) * p.type.bytes if axis.size > 1 else ROW_BYTES
            pointer = emit_pointer(w, load.tensor, at.loop_terms, at.constant)
            args = f"i8 {number}, ptr {pointer}, i64 {stride}"
            is_read_once = any(around in index_axes(i) for i in load.index)
            name = "tileloaddt164" if is_read_once else "tileloadd64"
            _call(w, name, args, "i8, ptr, i64")
            if load.tensor in w.prefetches:
                for row in range(groups.size):
                    line = at.constant + row * ROW_BYTES // p.type.bytes
                    emit_prefetch(w, load.tensor, replace(at, constant=line))
        return number

    for n, outer in enumerate(p.outer_positions()):
        b = load_tile(p.b, of_b, groups, outer)
        a = load_tile(p.a, of_a, p.m, outer)
        _call(w, p.type.amx, f"i8 {n}, i8 {a}, i8 {b}", "i8, i8, i8")


def store_tiles(w: Writer, read: Sequence[Tensor]) -> None:
    """Store the sums to memory before they are read."""
    sums = w.tile_sums
    if sums is None or sums.is_stored or sums.buffer not in read:
        return
    for n in range(sums.count):
        at = w.t.pointer("i8", sums.memory, f"i64 {n * TILE_BYTES}")
        if sums.block_offset:
            at = w.t.pointer("i8", at, f"i64 {sums.block_offset}")
        args = f"i8 {n}, ptr {at}, i64 {ROW_BYTES}"
        _call(w, "tilestored64", args, "i8, ptr, i64")
    sums.is_stored = True


@dataclass(frozen=True, slots=True)
class SumLoops:
    """Perfectly nested loops around AMX's sums, outermost first, and the statements within: those
    that compute the sums, and those that read them."""

    axes: tuple[Axis, ...]
    products: tuple[Stmt, ...]
    epilogue: tuple[Stmt, ...]


def match_sum_loops(w: Writer, s: For) -> SumLoops | None:
    """Return the innermost loops around the sums that have at least DELAYED_BLOCKS steps together,
    or all, if `s` is the outermost of these."""
    sums = w.tile_sums
    if sums is None or w.sizes:
        return None
    axes: list[Axis] = []
    body: tuple[Stmt, ...] = (s,)
    while len(body) == 1 and isinstance(inner := body[0], For):
        if inner.kind != "serial" or inner.begin is not None or inner.until is not None:
            return None
        axes.append(inner.axis)
        body = inner.body
    steps = prod(a.size for a in axes[1:])
    first = body[0] if body else None
    if steps >= DELAYED_BLOCKS or not isinstance(first, Store) or first.buffer != sums.buffer:
        return None
    for n, x in enumerate(body):
        if isinstance(x, Store) and any(y.tensor == sums.buffer for y in loads(x.value)):
            return SumLoops((*axes,), body[:n], body[n:])
    return None


def match_looped_rows(w: Writer, s: Store, first: TilePosition) -> Axis | None:
    """Return the axis along which a store reads the rows of the sums' tiles, if a loop over them
    needs no more than contiguous vectors; unrolled rows fill the instruction cache. first: the
    position of the first vector."""
    assert w.tile_sums is not None
    some = [x for x in loads(s.value) if x.tensor == w.tile_sums.buffer]
    rows = some[0].index[-2] if some else None
    if not isinstance(rows, Axis) or rows not in s.axes[:-1] or rows.size == 1:
        return None
    if any(x.index[-2] != rows for x in some) or s.buffer in w.registers:
        return None
    others = [x for x in loads(s.value) if x.tensor not in w.registers]
    read = [address(x.tensor, x.index, first) for x in others]
    stored = address(s.buffer, s.index, first)
    if stored is None or stored.lane_stride != 1:
        return None
    return rows if all(a is not None and a.lane_stride in (0, 1) for a in read) else None


def _call(w: Writer, name: str, args: str, kinds: str, at: list[str] | None = None) -> None:
    w.t.declared.add(f"declare void @llvm.x86.{name}({kinds})")
    line = f"  call void @llvm.x86.{name}({args})"
    (w.t.lines if at is None else at).append(line)
