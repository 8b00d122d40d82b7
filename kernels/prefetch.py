"""How far ahead constants are asked for that do not stay in a core's second cache."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from math import prod

from superopt.kernels.tile import For, Kernel, Stmt
from superopt.kernels.walk import axes_of, loads
from superopt.te.expr import Tensor
from superopt.te.node import Axis

STREAMED = 1 << 20  # bytes of a constant that does not stay in the second cache
PANEL = 1 << 19  # bytes of a part that does, together with the next one
NEXT = 12288  # bytes ahead in what is read once


def ahead(kernel: Kernel) -> dict[Tensor, int]:
    """Bytes between what is read of such constants, and what is asked for meanwhile.

    A part that is read several times before the next one is: that one. Else what comes soon.
    """
    large = {p.buffer for p in kernel.packs if _bytes(p.buffer) > STREAMED}
    out: dict[Tensor, int] = {}
    for buffer, loops, tile in _reads(kernel.body, large, ()) if large else ():
        part = _again(loops, tile) * max(buffer.dtype.bits // 8, 1)
        out[buffer] = NEXT if part > PANEL else -(-NEXT // part) * part if part < NEXT else part
    return out


Loop = tuple[Axis, bool, bool]  # is it written out? does the place that is read hang on it?


def _reads(
    body: Sequence[Stmt], buffers: Collection[Tensor], around: tuple[For, ...]
) -> Iterator[tuple[Tensor, list[Loop], int]]:
    """Each of these buffers with the loops in which it is read, and how many elements at a time."""
    for s in body:
        if isinstance(s, For):
            yield from _reads(s.body, buffers, (*around, s))
            continue
        for load in loads(s.value):
            if load.tensor in buffers:
                used = set().union(*map(axes_of, load.index))
                loops = [(f.axis, f.kind == "unroll", f.axis in used) for f in around]
                own = (*s.axes, *getattr(s, "over", ()))
                yield load.tensor, loops, prod(_extent(a) for a in own if a in used)


def _again(loops: Sequence[Loop], tile: int) -> int:
    """Elements that a loop reads again in each of its steps, before others are; all of them, where
    none does."""
    moved = False
    for n, (axis, written, used) in enumerate(loops):
        if moved and not used and not written and _extent(axis) > 1:
            return tile * prod(_extent(a) for a, _, more in loops[n:] if more)
        moved |= used
    return tile * prod(_extent(a) for a, _, used in loops if used)


def _extent(a: Axis) -> int:
    assert isinstance(a.extent, int)
    return a.extent


def _bytes(t: Tensor) -> int:
    return prod(d for d in t.shape if isinstance(d, int)) * max(t.dtype.bits // 8, 1)
