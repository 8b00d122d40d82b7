"""Assign memory to buffers whose sizes are symbolic.

Buffers are assigned to slots by their sizes at the example sizes: as many share a slot as have
disjoint lifetimes. A slot has the size of its largest buffer, whichever that is at a call, and
slots lie one after the other. Their offsets are words: values that are computed from the sizes
before a run, and that the program reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from superopt.plan.program.buffer_assignment import ALIGNMENT_BYTES
from superopt.te.expr import index
from superopt.te.expr.node import Dim, Expr
from superopt.te.expr.symbolic_int import hint


@dataclass(slots=True)
class Words:
    """Values that depend on symbolic sizes, in the order in which a program reads them: the sizes
    themselves, then what `number` was asked for."""

    values: list[Expr]
    numbers: dict[Expr, int] = field(default_factory=dict)

    def number(self, value: Dim) -> int:
        """Return the number of a word."""
        e = index.as_index(value)
        if e not in self.numbers:
            self.numbers[e] = len(self.values)
            self.values.append(e)
        return self.numbers[e]


@dataclass(frozen=True, slots=True)
class SymbolicLife:
    """A buffer's bytes, and its first and last step of use."""

    bytes: int
    first: int
    last: int


@dataclass(slots=True)
class _Slot:
    bytes: Expr
    lives: list[SymbolicLife]

    def is_free(self, x: SymbolicLife) -> bool:
        return all(x.last < o.first or o.last < x.first for o in self.lives)


def assign_slots(lives: Sequence[SymbolicLife]) -> tuple[list[Expr], Expr]:
    """Return the offset of each buffer, and the bytes of all of them."""
    slots: list[_Slot] = []
    chosen: dict[int, _Slot] = {}
    for n in sorted(range(len(lives)), key=lambda k: -hint(lives[k].bytes)):
        size = index.as_index(-(-lives[n].bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES)
        slot = next((s for s in slots if s.is_free(lives[n])), None)
        if slot is None:
            slot = _Slot(size, [])
            slots.append(slot)
        slot.bytes = index.apply("max", (slot.bytes, size), size.dtype)
        slot.lives.append(lives[n])
        chosen[n] = slot
    offsets: dict[int, Expr] = {}
    end = index.as_index(0)
    for slot in slots:
        offsets[id(slot)] = end
        end = index.as_index(end + slot.bytes)
    return [offsets[id(chosen[n])] for n in range(len(lives))], end
