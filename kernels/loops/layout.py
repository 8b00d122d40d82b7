"""Memory layouts of tensors as data: which part of which axis each dimension of a buffer is.

    i0 i1//16 i2+1 i3+1 i1%16     an NCHW image in blocks of 16 channels, with a border of one

A border (`i2+1`) is zeros on both sides of an axis, written once and never stored to, so that reads
past the edge of a padded tensor need no guard. The last block of an axis may be partial; the rest
of it is never read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from superopt.te.expr import index as te_index
from superopt.te.expr.node import Axis, Expr
from superopt.te.expr.tensor import Tensor


@dataclass(frozen=True, slots=True)
class Part:
    """A dimension: (index[axis] + border) // block, or that modulo `block` (`is_inner`)."""

    axis: int
    block: int = 1
    is_inner: bool = False
    border: int = 0

    def __str__(self) -> str:
        inner = f"i{self.axis}" + (f"+{self.border}" if self.border else "")
        if self.block == 1:
            return inner
        return f"{inner}{'%' if self.is_inner else '//'}{self.block}"


@dataclass(frozen=True, slots=True)
class Layout:
    """Each axis is one part, or two: the block, and the position in it."""

    parts: tuple[Part, ...]

    def __str__(self) -> str:
        return " ".join(map(str, self.parts))

    def border(self, axis: int) -> int:
        """Return the zeros on each side of an axis."""
        return next((p.border for p in self.parts if p.axis == axis), 0)

    def borders(self) -> tuple[int, ...] | None:
        """Return the zeros on each side of each dimension; None if an axis with a border is
        blocked."""
        if any(p.border and p.block > 1 for p in self.parts):
            return None
        return tuple(p.border for p in self.parts)

    def shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of the buffer of a tensor of this shape."""
        return tuple(
            p.block if p.is_inner else -(-(shape[p.axis] + 2 * p.border) // p.block)
            for p in self.parts
        )

    def buffer_index(self, index: Sequence[Expr]) -> tuple[Expr, ...]:
        """Return the buffer index of the element at `index`."""
        out: list[Expr] = []
        for p in self.parts:
            i = te_index.as_index(index[p.axis] + p.border)
            if p.block > 1:
                i = te_index.as_index(i % p.block if p.is_inner else i // p.block)
            out.append(i)
        return tuple(out)


_PART = re.compile(r"i(\d+)(?:\+(\d+))?(?:(//|%)(\d+))?")


def row_major(rank: int) -> Layout:
    return Layout(tuple(Part(n) for n in range(rank)))


def parse_layout(text: str) -> Layout:
    """Parse a layout. Raises ValueError for other text."""
    parts = []
    for word in text.split():
        m = _PART.fullmatch(word)
        if m is None:
            raise ValueError(f"{word} is not a layout part, such as i1//16")
        axis, border, how, block = m.groups()
        parts.append(Part(int(axis), int(block or 1), how == "%", int(border or 0)))
    check_parts(parts)
    return Layout(tuple(parts))


def check_parts(parts: Sequence[Part]) -> None:
    """Raise ValueError unless each axis appears once, whole or in blocks."""
    for axis in range(1 + max((p.axis for p in parts), default=-1)):
        own = sorted((p.is_inner, p.block, p.border) for p in parts if p.axis == axis)
        whole = len(own) == 1 and not own[0][0] and own[0][1] == 1
        blocks = (
            len(own) == 2 and [w for w, _, _ in own] == [False, True] and own[0][1:] == own[1][1:]
        )
        if not (whole or blocks):
            words = " ".join(str(p) for p in parts if p.axis == axis) or "nothing"
            raise ValueError(f"axis {axis} is {words}: not one part, nor blocks and inner parts")


@dataclass(frozen=True, slots=True)
class ScatteredLayout:
    """The layout of a tensor whose elements are stored within another tensor, at `index` over the
    tensor's own axes. Several equal elements may share a place."""

    shape: tuple[int, ...]  # of the other tensor
    layout: Layout
    axes: tuple[Axis, ...]
    index: tuple[Expr, ...]

    def axes_layout(self) -> Layout:
        """Return the layout of the tensor's own axes: that of the other tensor, if ranks agree."""
        return self.layout if len(self.axes) == len(self.index) else row_major(len(self.axes))


def effective_layout(layout: Layout | ScatteredLayout | None, rank: int) -> Layout:
    """Return the layout of a tensor's own axes, even if it is stored within another tensor."""
    if isinstance(layout, ScatteredLayout):
        return layout.axes_layout()
    return layout or row_major(rank)


@dataclass(frozen=True, slots=True)
class BufferView:
    """A tensor in a buffer, or its region from `begin` on."""

    buffer: Tensor
    layout: Layout | ScatteredLayout
    begin: tuple[Expr, ...] = ()

    def buffer_index(self, index: Sequence[Expr]) -> tuple[Expr, ...]:
        if self.begin:
            index = [te_index.as_index(i - b) for i, b in zip(index, self.begin, strict=True)]
        if isinstance(self.layout, ScatteredLayout):
            env: dict[Expr, Expr] = dict(zip(self.layout.axes, index, strict=True))
            at = [te_index.substitute(i, env) for i in self.layout.index]
            return self.layout.layout.buffer_index(at)
        return self.layout.buffer_index(index)

    def border(self, axis: int) -> int:
        return 0 if isinstance(self.layout, ScatteredLayout) else self.layout.border(axis)
