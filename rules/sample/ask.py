"""The question of the instance generator: which operands and attributes fit an operator?

What is known of the operands (sizes, perhaps not even the rank) and of the attributes is completed.
A proposal may still be wrong: inference and the rule's conditions decide. Its only duty is to be
right often enough, and to reach the corners: broadcasts, groups, strides, axes of one element.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from superopt.ir.op import Attr, Op
from superopt.rules.sample.draw import Draw, Hole, Shape

ABSENT: Hole = (-1,)  # an operand that is not there

# A shape for each operand (those of absent ones mean nothing), and attributes.
Fit = tuple[Sequence[Shape], dict[str, Attr]]


@dataclass(frozen=True, slots=True)
class Ask:
    """A hole for each operand (ABSENT if not there), attributes that are known, those to choose."""

    op: Op
    holes: tuple[Hole, ...]
    attrs: Mapping[str, Attr]
    free: frozenset[str]
    draw: Draw

    def ints(self, key: str) -> tuple[int, ...] | None:
        """The attribute if it is known, as a tuple of numbers."""
        value = self.attrs.get(key)
        if isinstance(value, tuple):
            return tuple(v for v in value if isinstance(v, int))
        return None

    def number(self, key: str) -> int | None:
        """The attribute if it is a known number."""
        value = self.attrs.get(key)
        return value if isinstance(value, int) else None
