"""State of LLVM code generation for a tile: buffers, registers, loops, and known values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from superopt.kernels.llvm.address import TilePosition
from superopt.kernels.llvm.builder import TextBuilder, Value, element_type, number
from superopt.kernels.llvm.prefetch import Prefetch
from superopt.kernels.loops.tile import Update
from superopt.kernels.processor import TILE_ROW_BYTES
from superopt.te.expr import index as te_index
from superopt.te.expr.dtype import BOOL, INDEX, DType
from superopt.te.expr.node import Axis, Const, Expr, Load
from superopt.te.expr.tensor import Tensor


@dataclass(slots=True)
class TileSums:
    """The sums of a product in AMX's first `count` tile registers. memory: where they are read
    from, once stored. is_stored: they are there. block_offset: of this block of sums there, in
    bytes, if there are several. around: the innermost loop around the sum."""

    buffer: Tensor
    count: int
    memory: str
    is_stored: bool = False
    block_offset: str = ""
    around: Axis | None = None


@dataclass(slots=True)
class Writer:
    """The state of code generation. width: bytes of a vector; loops: counters of the loops around;
    known_values: values computed at this point, by key."""

    t: TextBuilder
    width: int
    pointers: dict[Tensor, str] = field(default_factory=dict)
    registers: dict[Tensor, dict[tuple[int, ...], str]] = field(default_factory=dict)
    loops: dict[Axis, Value] = field(default_factory=dict)
    sizes: dict[str, Value] = field(default_factory=dict)  # symbolic ones
    size_values: dict[Expr, Value] = field(default_factory=dict)  # that depend on them alone
    # with symbolic sizes: where loops begin, by counter, and the addresses emitted there
    loop_begins: dict[Value, list[str]] = field(default_factory=dict)
    outer_addresses: dict[object, str] = field(default_factory=dict)
    known_values: dict[object, Value] = field(default_factory=dict)
    tables: dict[Tensor, np.ndarray] = field(default_factory=dict)
    unrolled_values: dict[Axis, int] = field(default_factory=dict)
    prefetches: dict[Tensor, Prefetch] = field(default_factory=dict)
    widest_bits: int = 8  # of the largest element that shares a tile with a register
    tile_extents: dict[Axis, int] = field(
        default_factory=dict
    )  # extents of the tile that is stored
    # vectors of constants in memory
    constants: dict[tuple[Const, int], str] = field(default_factory=dict)
    tile_sums: TileSums | None = None  # in AMX's registers
    # the kernel's update that adds products of groups of terms, by these instructions
    product_update: Update | None = None
    instructions: str = ""

    @contextmanager
    def loop(
        self, axis: Axis, extent: str = "", may_be_empty: bool = False, begin: str = "0"
    ) -> Iterator[None]:
        """Emit a loop over `axis` around what is emitted meanwhile. extent: the value of its
        extent, if that is symbolic. may_be_empty: that may be at most `begin`, the first value."""
        made = self.t.loop(extent or str(axis.size), may_be_empty, begin)
        with made as counter, self._scope({axis: counter}, {}):
            if self.sizes:
                self.loop_begins[counter] = self.t.mark()
            yield

    @contextmanager
    def bind(self, axis: Axis, value: Value) -> Iterator[None]:
        """Let an axis have a value in what is emitted meanwhile."""
        with self._scope({axis: value}, {}):
            if self.sizes:
                self.loop_begins[value] = self.t.mark()
            yield

    @contextmanager
    def unrolled_step(self, step: Mapping[Axis, int]) -> Iterator[None]:
        """Fix the axes of unrolled loops in what is emitted meanwhile."""
        with self._scope({a: number(k, INDEX) for a, k in step.items()}, step):
            yield

    @contextmanager
    def _scope(self, loops: Mapping[Axis, Value], unrolled: Mapping[Axis, int]) -> Iterator[None]:
        """Add loops for what is emitted meanwhile; other tensors may have axes of their names."""
        before = self.loops, self.unrolled_values
        self.loops, self.unrolled_values = {**before[0], **loops}, {**before[1], **unrolled}
        self.known_values.clear()
        yield
        self.known_values.clear()
        self.loops, self.unrolled_values = before


def load_sizes(w: Writer, names: Sequence[str], pointer: str) -> None:
    """Load the symbolic sizes, which lie one after the other."""
    for n, name in enumerate(names):
        at = f"%size{n}.at"
        w.t.line(f"{at} = getelementptr i64, ptr {pointer}, i64 {n}")
        w.sizes[name] = w.t.make(f"load i64, ptr {at}", INDEX, 0)


def table_value(w: Writer, e: Expr, p: TilePosition) -> float | None:
    """Return the table element that `e` loads, if unrolled loops determine its index; else None."""
    if not isinstance(e, Load) or e.tensor not in w.tables:
        return None
    fixed = {**w.unrolled_values, **p.axis_values}
    env: dict[Expr, Expr] = {a: te_index.as_index(k) for a, k in fixed.items() if a != p.lane_axis}
    at = [te_index.substitute(i, env) for i in e.index]
    if not all(isinstance(i, Const) for i in at):
        return None
    return float(w.tables[e.tensor][tuple(te_index.evaluate(i, {}) for i in at)])


def match_lanes(w: Writer, values: Sequence[Value]) -> list[Value]:
    """Broadcast values to the same number of lanes."""
    most = max(v.lanes for v in values)
    return [w.t.splat(v, most) for v in values]


def constant_slot(w: Writer, constant: Const, lanes: int) -> str:
    """Return the stack slot of a vector of a constant."""
    key = constant, lanes
    if key not in w.constants:
        w.constants[key] = slot = f"%{w.t.fresh('rest')}"
        held = number(constant.value, constant.dtype, lanes)
        w.t.entry.append(f"  {slot} = alloca {held.type}")
        w.t.entry.append(f"  store {held}, ptr {slot}")
    return w.constants[key]


def register_slot(
    w: Writer, buffer: Tensor, index: Sequence[Expr], p: TilePosition
) -> tuple[str, int]:
    """Return the stack slot of a vector of a register tile, which LLVM promotes to a register, and
    its number of lanes."""
    where, lanes = [], 0
    looped: Axis | None = None
    for i in index:
        place = 0
        for atoms, c in te_index.polynomial(i).items():
            (axis,) = atoms or (None,)
            assert axis is None or isinstance(axis, Axis)
            if axis in w.loops and axis not in p.axis_values:  # rows of tiles in memory
                looped = axis
                continue
            place += c * (1 if axis is None else p.axis_values[axis])
            lanes = p.lanes if axis is not None and axis == p.lane_axis else lanes
        where.append(place)
    slots = w.registers[buffer]
    key = tuple(where)
    if key not in slots:
        slots[key] = f"%{w.t.fresh('tile')}"
        one = element_type(buffer.dtype)
        w.t.entry.append(f"  {slots[key]} = alloca {f'<{lanes} x {one}>' if lanes else one}")
    at = slots[key]
    if w.tile_sums is not None and buffer == w.tile_sums.buffer and w.tile_sums.block_offset:
        at = w.t.pointer("i8", at, f"i64 {w.tile_sums.block_offset}")
    if looped is not None:
        at = w.t.pointer(f"[{TILE_ROW_BYTES} x i8]", at, str(w.loops[looped]))
    return at, lanes


def memory_suffix(kind: DType) -> str:
    """Return the intrinsic name suffix of an element type in memory."""
    return "i8" if kind == BOOL else Value("", kind).suffix


def loaded_value(t: TextBuilder, load: str, kind: DType, lanes: int) -> Value:
    """Emit a load as a value; a nonzero byte is true for bool."""
    if kind != BOOL:
        return t.make(load, kind, lanes)
    shape = f"<{lanes} x i8>" if lanes else "i8"
    byte = f"%{t.fresh()}"
    t.line(f"{byte} = {load}")
    zero = "zeroinitializer" if lanes else "0"
    return t.make(f"icmp ne {shape} {byte}, {zero}", BOOL, lanes)
