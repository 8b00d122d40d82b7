"""Emit the stores of a tile's vectors as LLVM text."""

from __future__ import annotations

from collections.abc import Sequence

from superopt.kernels.llvm.address import TilePosition, address, contiguous_runs, flat_index
from superopt.kernels.llvm.builder import TextBuilder, Value, memory_type
from superopt.kernels.llvm.lanes import shuffle_lanes
from superopt.kernels.llvm.values import emit_index, emit_pointer
from superopt.kernels.llvm.writer import Writer, register_slot
from superopt.te.expr.dtype import BOOL, INDEX
from superopt.te.expr.node import Expr
from superopt.te.expr.tensor import Tensor


def emit_store(
    w: Writer, buffer: Tensor, index: Sequence[Expr], new_value: Value, p: TilePosition
) -> None:
    """Store a vector, or a scalar if the position has no lanes."""
    t = w.t
    if buffer in w.registers:
        slot, _ = register_slot(w, buffer, index, p)
        t.line(f"store {new_value}, ptr {slot}")
        return
    for key in [k for k in w.known_values if isinstance(k, tuple) and k[0] is buffer]:
        del w.known_values[key]  # loads of this buffer
    found = address(buffer, index, p)
    size = max(buffer.dtype.bits // 8, 1)
    if found is not None and (not new_value.lanes or found.lane_stride == 1):
        at = emit_pointer(w, buffer, found.loop_terms, found.constant)
        t.line(f"store {_memory_operand(t, new_value)}, ptr {at}, align {size}")
        return
    flat = flat_index(buffer, index)
    some = contiguous_runs(flat, p)
    apart = len(some) == new_value.lanes
    places = t.splat(emit_index(w, flat, p), new_value.lanes) if apart else new_value
    for begin, place, count in some:
        if apart:
            part = t.make(f"extractelement {new_value}, i64 {begin}", new_value.dtype, 0)
            where = t.make(f"extractelement {places}, i64 {begin}", INDEX, 0)
        else:
            part = shuffle_lanes(t, new_value, new_value, range(begin, begin + count))
            where = emit_index(w, place, p)
        at = f"%{t.fresh()}"
        t.line(
            f"{at} = getelementptr {memory_type(buffer.dtype)}, ptr {w.pointers[buffer]}, {where}"
        )
        t.line(f"store {_memory_operand(t, part)}, ptr {at}, align {size}")


def _memory_operand(t: TextBuilder, v: Value) -> str:
    """Return a value as it is stored: a bool as a byte."""
    if v.dtype != BOOL:
        return str(v)
    shape = f"<{v.lanes} x i8>" if v.lanes else "i8"
    byte = f"%{t.fresh()}"
    t.line(f"{byte} = zext {v} to {shape}")
    return f"{shape} {byte}"
