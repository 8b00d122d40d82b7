"""Mutants of a window operator: move parts of one axis to another before it, and back after it.

A part of an axis, f contiguous blocks or f residue classes, becomes part of another axis: rows
become a batch (space-to-batch), a batch becomes one wide image, a tall image a wide one. The window
may get another dilation and padding. One or two such moves are made; `find_regions` determines what
happens at the seams. If an axis is not divisible, the divisible part is moved and the remainder is
0 (`split.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from superopt.ir import graph as g
from superopt.ir.op import InferError
from superopt.ops import OPS
from superopt.partial.boxes import Box, Span
from superopt.partial.restrict import shape_of, sliced
from superopt.partial.split import SPLIT

FACTORS = (2, 3, 4)
WINDOWS = ("Conv", "AveragePool")
LEFT = 2  # elements of a part for each one that is left over, at least
FIRST = 2  # axes before the sides of a picture: images and channels


@dataclass(frozen=True, slots=True)
class Move:
    """Move f parts of an axis in front of another axis. phases: the parts are residue classes; else
    blocks."""

    axis: int
    to: int
    f: int
    phases: bool


def mutants(program: g.Value, still: Collection[int] = ()) -> Iterator[tuple[str, g.Value]]:
    """Yield names and distinct mutants of the same shape for a window of static sizes; nothing for
    other programs. fixed_axes: axes that are not moved."""
    n = g.producer(program)
    if n is None or n.op.name not in WINDOWS or n.op.domain or n.inputs[0] is None:
        return
    x = n.inputs[0]
    seen = {program}
    for moves in _moves(shape_of(x)):
        if any(m.axis in still for m in moves):
            continue
        part = sliced(x, _taken(shape_of(x), moves))
        name = "-".join((*map(_name, moves), *([] if part is x else [SPLIT])))
        for how in _windows(n, moves):
            try:
                made = _moved(n, part, moves, how)
                if made is not None and part is not x:
                    made = _widened(made, shape_of(program))
            except InferError:
                continue
            if made is not None and made.type == program.type and made not in seen:
                seen.add(made)
                yield name, made


def _taken(shape: tuple[int, ...], moves: tuple[Move, ...]) -> Box:
    """Return the divisible part of each axis."""
    parts = {m.axis: m.f for m in moves}
    return tuple(Span(0, n - n % parts.get(d, 1)) for d, n in enumerate(shape))


def _widened(made: g.Value, shape: tuple[int, ...]) -> g.Value | None:
    """Pad with zeros at the end to a shape; None if the value is larger."""
    gaps = [a - b for a, b in zip(shape, shape_of(made), strict=True)]
    if min(gaps) < 0:
        return None
    return g.node(OPS["Pad"], [made], pads=(*(0 for _ in gaps), *gaps)) if any(gaps) else made


def _name(m: Move) -> str:
    return f"{m.f}-{'phases' if m.phases else 'blocks'}-of-{'nchwd'[m.axis]}-to-{'nchwd'[m.to]}"


def _moves(shape: tuple[int, ...]) -> Iterator[tuple[Move, ...]]:
    """Yield single moves, and pairs of equal moves of both sides to the batch."""
    sides = range(FIRST, len(shape))
    for axis, to, phases in product((0, *sides), (0, *sides), (False, True)):
        for f in sorted({*FACTORS, shape[axis] if axis == 0 else 2}):
            if axis != to and f > 1 and _parted(shape[axis], f):
                yield (Move(axis, to, f, phases),)
    for f, phases in product(FACTORS, (True, False)):
        if len(shape) == 4 and all(_parted(shape[d], f) for d in sides):
            yield tuple(Move(d, 0, f, phases) for d in sides)


def _parted(size: int, f: int) -> bool:
    """True if the size is divisible by f, or nearly so."""
    return size % f == 0 or size >= LEFT * (size % f) * f


def _windows(n: g.Node, moves: tuple[Move, ...]) -> Iterator[dict[str, Any]]:
    """Yield attributes of the window: its own, and dilation and padding divided by f."""
    own: dict[str, Any] = {k: n.attr(k) for k in ("dilations", "pads", "strides")}
    yield own
    less = {k: list(v) for k, v in own.items()}
    sides = len(less["dilations"])
    for m in moves:
        d = m.axis - FIRST
        if d < 0 or not m.phases:
            return
        for k, at in (("dilations", d), ("pads", d), ("pads", d + sides)):
            if less[k][at] % m.f:
                return
            less[k][at] //= m.f
    yield {k: tuple(v) for k, v in less.items()}


def _moved(n: g.Node, x: g.Value, moves: tuple[Move, ...], how: dict[str, Any]) -> g.Value | None:
    """Return the window between the moves; None if its result cannot be moved back."""
    for m in moves:
        x = there(x, m)
    made: g.Value = g.node(n.op, (x, *n.inputs[1:]), **{**dict(n.attrs), **how})
    for m in reversed(moves):
        if shape_of(made)[m.to] % m.f:
            return None
        made = there(made, replace(m, axis=m.to, to=m.axis), back=m.phases)
    return made


def there(x: g.Value, m: Move, back: bool = False) -> g.Value:
    """Apply a move. back: undo a phase move, with exchanged axes. (A block move is undone by the
    opposite move.)"""
    shape = list(shape_of(x))
    phases = m.phases and not back
    split = (shape[m.axis] // m.f, m.f) if phases else (m.f, shape[m.axis] // m.f)
    apart = [*shape[: m.axis], *split, *shape[m.axis + 1 :]]
    part = m.axis + 1 if phases else m.axis
    order = [d for d in range(len(apart)) if d != part]
    target = m.to if m.to < m.axis else m.to + 1  # of the axis, among the ones that are apart
    order.insert(order.index(target) + back, part)  # back: behind what is there
    out = list(shape)
    out[m.axis] //= m.f
    out[m.to] *= m.f
    cut = g.node(OPS["Reshape"], [x], shape=tuple(apart))
    turned = g.node(OPS["Transpose"], [cut], perm=tuple(order))
    return g.node(OPS["Reshape"], [turned], shape=tuple(out))
