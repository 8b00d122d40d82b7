"""Hoist loads behind a loop before it, if they are small: they overlap with the loop, and the
program does not wait for memory again at its end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from superopt.kernels.llvm.address import flat_index
from superopt.kernels.loops.tile import Stmt, Store
from superopt.kernels.triton.values import (
    combine_masks,
    emit_index,
    emit_load,
    emit_value,
    hoisted_load,
)
from superopt.kernels.triton.writer import Block, Writer, block_shape, non_unit_axes
from superopt.te.analysis.walk import loads
from superopt.te.expr.node import Apply, Const, Expr, Load

MAX_HOISTED_TILE_ELEMENTS, MAX_HOISTED_ELEMENTS = (
    256,
    2048,
)  # elements of a tile; of all that is held during a loop


def hoist_loads(w: Writer, following: Sequence[Stmt]) -> None:
    """Emit the loads of the stores in `following`, from buffers that the kernel does not write."""
    apart, room = w.registers | w.stored, MAX_HOISTED_ELEMENTS
    for s in following:
        if (
            not isinstance(s, Store)
            or (size := prod(block_shape(non_unit_axes(s.axes)))) > MAX_HOISTED_TILE_ELEMENTS
        ):
            continue
        w.limits = s.limits
        w.begin_tile(s.axes)
        for x, guard in dict.fromkeys(_guarded_loads(w, s.value, None)):
            if size > room:
                return
            if x.tensor not in apart and not any(True for i in x.index for _ in loads(i)):
                offset = emit_index(w, flat_index(x.tensor, x.index), guard).text
                at = f"{w.buffer(x.tensor)} + {offset}"
                if hoisted_load(w, at, guard) is None:
                    found = emit_load(w, x.tensor, x.index, guard)
                    w.hoisted[at, guard.text if guard else "", w.tile] = found
                    room -= size


def _guarded_loads(w: Writer, e: Expr, guard: Block | None) -> Iterator[tuple[Load, Block | None]]:
    """Yield (load, guard). Loads in both branches of a select are unconditional. A guard that
    depends on loaded data is skipped: it is not known yet."""
    match e:
        case Load():
            yield e, guard
        case Apply("select", (test, yes, no)):
            if any(True for _ in loads(test)):
                return
            both_, some = set(_unconditional_loads(no)), emit_value(w, test, guard)
            yield from ((x, guard) for x in _unconditional_loads(yes) if x in both_)
            other = Block(f"({some.text} == 0)", some.axes)
            for branch, when in ((yes, some), (no, other)):
                if not isinstance(no, Const):
                    yield from _guarded_loads(w, branch, combine_masks(w, when, guard))
        case Apply(_, args):
            for a in args:
                yield from _guarded_loads(w, a, guard)


def _unconditional_loads(e: Expr) -> Iterator[Load]:
    """Yield the loads that happen whatever the guards are."""
    match e:
        case Load():
            yield e
        case Apply("select", (test, yes, no)):
            yield from _unconditional_loads(test)
            other = set(_unconditional_loads(no))
            yield from (x for x in _unconditional_loads(yes) if x in other)
        case Apply(_, args):
            for a in args:
                yield from _unconditional_loads(a)
