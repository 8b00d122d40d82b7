"""The request of the instance generator: complete the operands and attributes of an operator.

Known sizes (perhaps without a rank) and attributes are completed. A proposal may be wrong:
inference and the rule's conditions decide. Proposals must succeed often enough, and cover corner
cases: broadcasts, groups, strides, axes of size 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from superopt.ir.op import Attr, Op
from superopt.rules.trial.sample.draw import Draw, PartialShape, Shape

ABSENT: PartialShape = (-1,)  # an absent operand

# A shape for each operand (meaningless for absent ones), and attributes.
Fit = tuple[Sequence[Shape], dict[str, Attr]]


@dataclass(frozen=True, slots=True)
class FitRequest:
    """A partial shape for each operand (ABSENT if absent), known attributes, attributes to
    choose."""

    op: Op
    partial_shapes: tuple[PartialShape, ...]
    attrs: Mapping[str, Attr]
    free: frozenset[str]
    draw: Draw

    def int_tuple(self, key: str) -> tuple[int, ...] | None:
        """Return a known attribute as a tuple of integers, else None."""
        value = self.attrs.get(key)
        if isinstance(value, tuple):
            return tuple(v for v in value if isinstance(v, int))
        return None

    def int_value(self, key: str) -> int | None:
        """Return a known integer attribute, else None."""
        value = self.attrs.get(key)
        return value if isinstance(value, int) else None
