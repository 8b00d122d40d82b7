"""What is read behind a loop, read before it, where it is little: it is under way while the loop
runs, and a program does not wait for memory once more when it is over."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from superopt.kernels.address import flat_index
from superopt.kernels.gpu_values import (
    Block,
    Writer,
    both,
    early,
    index,
    proper,
    read,
    shape,
    value,
)
from superopt.kernels.tile import Stmt, Store
from superopt.te.node import Apply, Const, Expr, Load
from superopt.te.walk import loads

LITTLE, ROOM = 256, 2048  # elements of a tile; and of all that are held while a loop runs


def ahead(w: Writer, rest: Sequence[Stmt]) -> None:
    """What stores behind a loop read, of what the kernel does not write, is read."""
    apart, room = w.registers | w.stored, ROOM
    for s in rest:
        if not isinstance(s, Store) or (size := prod(shape(proper(s.axes)))) > LITTLE:
            continue
        w.over(s.axes)
        for x, guard in dict.fromkeys(_reads(w, s.value, None)):
            if size > room:
                return
            if x.tensor not in apart and not any(True for i in x.index for _ in loads(i)):
                at = f"{w.buffer(x.tensor)} + {index(w, flat_index(x.tensor, x.index), guard).text}"
                if early(w, at, guard) is None:
                    found = read(w, x.tensor, x.index, guard)
                    w.early[at, guard.text if guard else "", w.tile] = found
                    room -= size


def _reads(w: Writer, e: Expr, guard: Block | None) -> Iterator[tuple[Load, Block | None]]:
    """Loads, each with when it is made: what is read in both cases of a condition always is. A
    condition that hangs on what is computed is none that is known yet."""
    match e:
        case Load():
            yield e, guard
        case Apply("select", (test, yes, no)):
            if any(True for _ in loads(test)):
                return
            both_, some = set(_always(no)), value(w, test, guard)
            yield from ((x, guard) for x in _always(yes) if x in both_)
            other = Block(f"({some.text} == 0)", some.axes)
            for branch, when in ((yes, some), (no, other)):
                if not isinstance(no, Const):
                    yield from _reads(w, branch, both(w, when, guard))
        case Apply(_, args):
            for a in args:
                yield from _reads(w, a, guard)


def _always(e: Expr) -> Iterator[Load]:
    """The loads that are made whatever its conditions say."""
    match e:
        case Load():
            yield e
        case Apply("select", (test, yes, no)):
            yield from _always(test)
            other = set(_always(no))
            yield from (x for x in _always(yes) if x in other)
        case Apply(_, args):
            for a in args:
                yield from _always(a)
