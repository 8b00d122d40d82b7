"""Emit the stores of a tile's vectors as LLVM text."""

from __future__ import annotations

from collections.abc import Sequence

from superopt.kernels.address import Place, address, flat_index, runs
from superopt.kernels.cpu_values import index_value, pointer
from superopt.kernels.cpu_writer import Writer, register
from superopt.kernels.functions import shuffled
from superopt.kernels.text import Text, Value, stored
from superopt.te.dtype import BOOL, INDEX
from superopt.te.expr import Tensor
from superopt.te.node import Expr


def put(w: Writer, buffer: Tensor, index: Sequence[Expr], new: Value, p: Place) -> None:
    """Store a vector, or a scalar if the position has no lanes."""
    t = w.t
    if buffer in w.registers:
        slot, _ = register(w, buffer, index, p)
        t.line(f"store {new}, ptr {slot}")
        return
    for key in [k for k in w.known if isinstance(k, tuple) and k[0] is buffer]:
        del w.known[key]  # loads of this buffer
    found = address(buffer, index, p)
    size = max(buffer.dtype.bits // 8, 1)
    if found is not None and (not new.lanes or found.step == 1):
        at = pointer(w, buffer, found.moving, found.constant)
        t.line(f"store {_packed(t, new)}, ptr {at}, align {size}")
        return
    flat = flat_index(buffer, index)
    some = runs(flat, p)
    apart = len(some) == new.lanes
    places = t.splat(index_value(w, flat, p), new.lanes) if apart else new
    for begin, place, count in some:
        if apart:
            part = t.make(f"extractelement {new}, i64 {begin}", new.dtype, 0)
            where = t.make(f"extractelement {places}, i64 {begin}", INDEX, 0)
        else:
            part = shuffled(t, new, new, range(begin, begin + count))
            where = index_value(w, place, p)
        at = f"%{t.fresh()}"
        t.line(f"{at} = getelementptr {stored(buffer.dtype)}, ptr {w.pointers[buffer]}, {where}")
        t.line(f"store {_packed(t, part)}, ptr {at}, align {size}")


def _packed(t: Text, v: Value) -> str:
    """Return a value as it is stored: a bool as a byte."""
    if v.dtype != BOOL:
        return str(v)
    shape = f"<{v.lanes} x i8>" if v.lanes else "i8"
    byte = f"%{t.fresh()}"
    t.line(f"{byte} = zext {v} to {shape}")
    return f"{shape} {byte}"
