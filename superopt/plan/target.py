"""What a program is planned for: how kernels are chosen, where pictures lie, what floats are."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from superopt.kernels.layout import Layout
from superopt.kernels.option import Option
from superopt.kernels.problem import Choice, Problem
from superopt.kernels.space import choice
from superopt.plan.attention import Fusing, on_processor
from superopt.plan.place import layouts
from superopt.plan.streams import Streams
from superopt.te.dtype import DType
from superopt.te.expr import Tensor

TF32 = 13  # bits of a float32 that it has not


@dataclass(frozen=True, slots=True)
class Target:
    """What a program is planned for. choose: how a problem is computed; lie: where pictures do, of
    what is computed, of outputs, and of what is written in parts; fuses: which attention is one
    kernel; turns: are operands copied as what reads them does: of products in their order, of
    windows with a border? joins: are products of one operand with several constants one? clears:
    are zeros around pictures written each time where that saves memory? compares: are masks of rows
    that are constants on each side of a diagonal compared instead of read? kind: floats of 32 bits
    are of it in memory. drops: or so many of their last bits are zeros, for dots that do not read
    these: they would leave them out, which is always less, and errors of one sign add up from layer
    to layer. parts: elements of a result below which long sums are in parts (in_parts.py); 0: none
    are. streams: on which of several streams steps run, by what each reads, what it writes,
    and how it is computed; None: there is one. bounded: do transformed
    constants have a budget (transformed.py)?"""

    choose: Callable[[Problem, Option | None], Choice] = choice
    lie: Callable[..., dict[Tensor, Layout]] = layouts
    fuses: Callable[[Collection[Tensor], int], Fusing] | None = on_processor
    turns: bool = True
    joins: bool = False
    clears: bool = True
    compares: bool = False
    kind: DType | None = None
    drops: int = 0
    parts: int = 0
    streams: Streams | None = None
    bounded: bool = False


CPU = Target(bounded=True)
