"""A program's constants, packed in the order in which its kernels read them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from superopt.kernels.loops.pack import pack_constant
from superopt.kernels.loops.tile import Pack
from superopt.plan.lowering.derived_constants import Load
from superopt.plan.program.constant_pool import (
    CONSTANT_POOL,
    PackedConstants,
    Writer,
    pool_arrays,
)
from superopt.te.expr import index
from superopt.te.expr.node import Axis, Expr
from superopt.te.expr.tensor import TensorType

RELEASE_INTERVAL_BYTES = 16 << 20  # that are packed before originals' pages are given back


@dataclass(frozen=True, slots=True)
class ConstantSlot:
    """A constant of a program: `at` bytes into a copy of all of them, as its kernel reads it."""

    offset: int
    type: TensorType
    load: Load
    pack: Pack | None

    @property
    def layout(self) -> str:
        """What tells in which order its elements lie."""
        return f"{self.type}" if self.pack is None else layout_key(self.pack)

    @property
    def bytes(self) -> int:
        assert self.type.dtype is not None
        shape = [n for n in self.type.shape or () if isinstance(n, int)]
        return prod(shape) * max(self.type.dtype.bits // 8, 1)

    def write(self, memory: np.ndarray) -> None:
        """Fill its bytes."""
        array = self.load()
        shape = [n for n in self.type.shape or () if isinstance(n, int)]
        out = memory[: prod(shape) * array.itemsize].view(array.dtype).reshape(shape)
        if self.pack is None:
            np.copyto(out, array.reshape(shape))
        else:
            pack_constant(self.pack, array, out)


def layout_key(p: Pack) -> str:
    """What tells in which order a constant's elements lie, whatever the names of axes are."""
    axes = [Axis(f"i{n}", a.extent) for n, a in enumerate(p.axes)]
    env: dict[Expr, Expr] = dict(zip(p.axes, axes, strict=True))
    sizes = [a.extent for a in axes]
    return f"{p.buffer.type} {sizes} {[index.substitute(e, env) for e in p.index]}"


def _slots_by_offset(slots: Sequence[ConstantSlot]) -> dict[int, ConstantSlot]:
    """The constants by place, in order; an empty one gives way to what begins at its place."""
    out: dict[int, ConstantSlot] = {}
    for c in slots:
        if c.offset not in out or out[c.offset].bytes == 0:
            out[c.offset] = c
    return dict(sorted(out.items()))


def ordered_slots(slots: Sequence[ConstantSlot]) -> list[ConstantSlot]:
    """Return the constants in the order of the table of pointers."""
    return [*_slots_by_offset(slots).values()]


def constant_numbers(slots: Sequence[ConstantSlot]) -> dict[int, int]:
    """The number of each constant in the table of pointers, by its place."""
    return {at: n for n, at in enumerate(_slots_by_offset(slots))}


def pack_constants(
    slots: Sequence[ConstantSlot], size: int, release: Callable[[], None] | None = None
) -> PackedConstants:
    """The constants as kernels read them; those that the process holds already are shared.

    size: bytes of a copy of all of them. release: gives memory back that reading originals took; it
    is called from time to time. New ones are put together into large pages. Raises what
    `Held.write` raises."""
    some = _slots_by_offset(slots)
    known = {
        at: found
        for at, c in some.items()
        if (found := CONSTANT_POOL.find_packed(c.load, c.layout)) is not None
    }
    new = {at: c for at, c in some.items() if at not in known}
    packed_bytes = 0

    def writer(c: ConstantSlot) -> Writer:
        def write(out: np.ndarray) -> None:
            nonlocal packed_bytes
            c.write(out)
            packed_bytes += len(out)
            if release is not None and packed_bytes > RELEASE_INTERVAL_BYTES:
                packed_bytes = 0
                release()

        return write

    writers = [(c.bytes, writer(c)) for c in new.values()]
    for (at, c), found in zip(new.items(), pool_arrays(writers), strict=True):
        known[at] = found
        CONSTANT_POOL.remember(c.load, c.layout, found[0])
    if release is not None:
        release()
    return _in_table_order(some, size, known)


def _in_table_order(
    places: Iterable[int], size: int, found: Mapping[int, tuple[str, np.ndarray]]
) -> PackedConstants:
    some = tuple(places)
    digests = tuple(found[at][0] for at in some)
    return PackedConstants(some, size, digests, tuple(found[at][1] for at in some))
