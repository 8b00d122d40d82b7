"""How a tensor lies in memory, as data: which part of which axis each dimension of its buffer is.

    i0 i1//16 i2+1 i3+1 i1%16     a picture in blocks of 16 channels, with a border of one

A border (`i2+1`) is zeros on both sides of an axis, written once and never stored to, so that what
reads past the edge of a padded tensor needs no condition. An axis in blocks may end within one: the
rest of that block is never read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from superopt.te import index as ix
from superopt.te.expr import Tensor
from superopt.te.node import Axis, Expr


@dataclass(frozen=True, slots=True)
class Part:
    """A dimension: (index[axis] + border) // block, or its rest by `block` (`within`)."""

    axis: int
    block: int = 1
    within: bool = False
    border: int = 0

    def __str__(self) -> str:
        inner = f"i{self.axis}" + (f"+{self.border}" if self.border else "")
        if self.block == 1:
            return inner
        return f"{inner}{'%' if self.within else '//'}{self.block}"


@dataclass(frozen=True, slots=True)
class Layout:
    """Every axis is one part, or one of blocks and one within a block."""

    parts: tuple[Part, ...]

    def __str__(self) -> str:
        return " ".join(map(str, self.parts))

    def border(self, axis: int) -> int:
        """The zeros on each side of an axis."""
        return next((p.border for p in self.parts if p.axis == axis), 0)

    def borders(self) -> tuple[int, ...] | None:
        """The zeros on each side of each dimension; None where they are parts of blocks."""
        if any(p.border and p.block > 1 for p in self.parts):
            return None
        return tuple(p.border for p in self.parts)

    def shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Of the buffer of a tensor of this shape."""
        return tuple(
            p.block if p.within else -(-(shape[p.axis] + 2 * p.border) // p.block)
            for p in self.parts
        )

    def place(self, index: Sequence[Expr]) -> tuple[Expr, ...]:
        """Where in the buffer the element at `index` is."""
        out: list[Expr] = []
        for p in self.parts:
            i = ix.as_index(index[p.axis] + p.border)
            if p.block > 1:
                i = ix.as_index(i % p.block if p.within else i // p.block)
            out.append(i)
        return tuple(out)


_PART = re.compile(r"i(\d+)(?:\+(\d+))?(?:(//|%)(\d+))?")


def row_major(rank: int) -> Layout:
    return Layout(tuple(Part(n) for n in range(rank)))


def parsed(text: str) -> Layout:
    """A layout from its text. Raises ValueError where it is none."""
    parts = []
    for word in text.split():
        m = _PART.fullmatch(word)
        if m is None:
            raise ValueError(f"{word} is no part of a layout, such as i1//16")
        axis, border, how, block = m.groups()
        parts.append(Part(int(axis), int(block or 1), how == "%", int(border or 0)))
    checked(parts)
    return Layout(tuple(parts))


def checked(parts: Sequence[Part]) -> None:
    """Raise ValueError unless each axis is said once, whole or in blocks."""
    for axis in range(1 + max((p.axis for p in parts), default=-1)):
        own = sorted((p.within, p.block, p.border) for p in parts if p.axis == axis)
        whole = len(own) == 1 and not own[0][0] and own[0][1] == 1
        blocks = (
            len(own) == 2 and [w for w, _, _ in own] == [False, True] and own[0][1:] == own[1][1:]
        )
        if not (whole or blocks):
            words = " ".join(str(p) for p in parts if p.axis == axis) or "nothing"
            raise ValueError(f"axis {axis} is {words}, not one part, nor blocks and within these")


@dataclass(frozen=True, slots=True)
class Scatter:
    """A tensor's elements lie where those of another one do: that at `index`, which is said by the
    tensor's own axes. Several elements may lie at one place, if they are equal."""

    shape: tuple[int, ...]  # of the other one
    layout: Layout
    axes: tuple[Axis, ...]
    index: tuple[Expr, ...]

    def own(self) -> Layout:
        """The layout that the tensor's own axes would have: that of what it is a part of."""
        return self.layout if len(self.axes) == len(self.index) else row_major(len(self.axes))


def lying(layout: Layout | Scatter | None, rank: int) -> Layout:
    """How the axes of a tensor lie, whatever it is a part of."""
    if isinstance(layout, Scatter):
        return layout.own()
    return layout or row_major(rank)


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor, or a region of it from `begin` on, in a buffer; or in one of several, that at
    `slot`, which are the first dimension."""

    buffer: Tensor
    layout: Layout | Scatter
    begin: tuple[Expr, ...] = ()
    slot: tuple[Expr, ...] = ()

    def place(self, index: Sequence[Expr]) -> tuple[Expr, ...]:
        return (*self.slot, *self._place(index))

    def _place(self, index: Sequence[Expr]) -> tuple[Expr, ...]:
        if self.begin:
            index = [ix.as_index(i - b) for i, b in zip(index, self.begin, strict=True)]
        if isinstance(self.layout, Scatter):
            env: dict[Expr, Expr] = dict(zip(self.layout.axes, index, strict=True))
            at = [ix.substitute(i, env) for i in self.layout.index]
            return self.layout.layout.place(at)
        return self.layout.place(index)

    def border(self, axis: int) -> int:
        return 0 if isinstance(self.layout, Scatter) else self.layout.border(axis)
