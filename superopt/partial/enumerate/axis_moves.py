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

from superopt.ir import graph
from superopt.ir.op import InferError
from superopt.ops import OPS
from superopt.partial.correct.restrict import slice_box, static_shape
from superopt.partial.correct.split import SPLIT
from superopt.partial.regions.boxes import Box, Span

SPLIT_FACTORS = (2, 3, 4)
WINDOW_OPS = ("Conv", "AveragePool")
MIN_PART_PER_REMAINDER = 2  # elements of a part for each one that is left over, at least
FIRST_SPATIAL_AXIS = 2  # axes before the spatial ones: batch and channels


@dataclass(frozen=True, slots=True)
class AxisMove:
    """Move f parts of an axis in front of another axis. phases: the parts are residue classes; else
    blocks."""

    axis: int
    to: int
    factor: int
    phases: bool


def window_mutants(
    program: graph.Value, fixed_axes: Collection[int] = ()
) -> Iterator[tuple[str, graph.Value]]:
    """Yield names and distinct mutants of the same shape for a window of static sizes; nothing for
    other programs. fixed_axes: axes that are not moved."""
    n = graph.producer(program)
    if n is None or n.op.name not in WINDOW_OPS or n.op.domain or n.inputs[0] is None:
        return
    x = n.inputs[0]
    seen = {program}
    for moves in _candidate_moves(static_shape(x)):
        if any(m.axis in fixed_axes for m in moves):
            continue
        part = slice_box(x, _divisible_box(static_shape(x), moves))
        name = "-".join((*map(_move_name, moves), *([] if part is x else [SPLIT])))
        for how in _window_attrs(n, moves):
            try:
                made = _moved_window(n, part, moves, how)
                if made is not None and part is not x:
                    made = _pad_to_shape(made, static_shape(program))
            except InferError:
                continue
            if made is not None and made.type == program.type and made not in seen:
                seen.add(made)
                yield name, made


def _divisible_box(shape: tuple[int, ...], moves: tuple[AxisMove, ...]) -> Box:
    """Return the divisible part of each axis."""
    parts = {m.axis: m.factor for m in moves}
    return tuple(Span(0, n - n % parts.get(d, 1)) for d, n in enumerate(shape))


def _pad_to_shape(made: graph.Value, shape: tuple[int, ...]) -> graph.Value | None:
    """Pad with zeros at the end to a shape; None if the value is larger."""
    gaps = [a - b for a, b in zip(shape, static_shape(made), strict=True)]
    if min(gaps) < 0:
        return None
    return graph.node(OPS["Pad"], [made], pads=(*(0 for _ in gaps), *gaps)) if any(gaps) else made


def _move_name(m: AxisMove) -> str:
    return (
        f"{m.factor}-{'phases' if m.phases else 'blocks'}-of-{'nchwd'[m.axis]}-to-{'nchwd'[m.to]}"
    )


def _candidate_moves(shape: tuple[int, ...]) -> Iterator[tuple[AxisMove, ...]]:
    """Yield single moves, and pairs of equal moves of both sides to the batch."""
    sides = range(FIRST_SPATIAL_AXIS, len(shape))
    for axis, to, phases in product((0, *sides), (0, *sides), (False, True)):
        for f in sorted({*SPLIT_FACTORS, shape[axis] if axis == 0 else 2}):
            if axis != to and f > 1 and _can_split(shape[axis], f):
                yield (AxisMove(axis, to, f, phases),)
    for f, phases in product(SPLIT_FACTORS, (True, False)):
        if len(shape) == 4 and all(_can_split(shape[d], f) for d in sides):
            yield tuple(AxisMove(d, 0, f, phases) for d in sides)


def _can_split(size: int, f: int) -> bool:
    """True if the size is divisible by f, or nearly so."""
    return size % f == 0 or size >= MIN_PART_PER_REMAINDER * (size % f) * f


def _window_attrs(n: graph.Node, moves: tuple[AxisMove, ...]) -> Iterator[dict[str, Any]]:
    """Yield attributes of the window: its own, and dilation and padding divided by f."""
    own: dict[str, Any] = {k: n.attr(k) for k in ("dilations", "pads", "strides")}
    yield own
    less = {k: list(v) for k, v in own.items()}
    sides = len(less["dilations"])
    for m in moves:
        d = m.axis - FIRST_SPATIAL_AXIS
        if d < 0 or not m.phases:
            return
        for k, at in (("dilations", d), ("pads", d), ("pads", d + sides)):
            if less[k][at] % m.factor:
                return
            less[k][at] //= m.factor
    yield {k: tuple(v) for k, v in less.items()}


def _moved_window(
    n: graph.Node, x: graph.Value, moves: tuple[AxisMove, ...], attrs: dict[str, Any]
) -> graph.Value | None:
    """Return the window between the moves; None if its result cannot be moved back."""
    for m in moves:
        x = apply_move(x, m)
    made: graph.Value = graph.node(n.op, (x, *n.inputs[1:]), **{**dict(n.attrs), **attrs})
    for m in reversed(moves):
        if static_shape(made)[m.to] % m.factor:
            return None
        made = apply_move(made, replace(m, axis=m.to, to=m.axis), back=m.phases)
    return made


def apply_move(x: graph.Value, m: AxisMove, back: bool = False) -> graph.Value:
    """Apply a move. back: undo a phase move, with exchanged axes. (A block move is undone by the
    opposite move.)"""
    shape = list(static_shape(x))
    phases = m.phases and not back
    split = (
        (shape[m.axis] // m.factor, m.factor) if phases else (m.factor, shape[m.axis] // m.factor)
    )
    apart = [*shape[: m.axis], *split, *shape[m.axis + 1 :]]
    part = m.axis + 1 if phases else m.axis
    order = [d for d in range(len(apart)) if d != part]
    target = m.to if m.to < m.axis else m.to + 1  # of the axis, among the ones that are apart
    order.insert(order.index(target) + back, part)  # back: behind what is there
    out = list(shape)
    out[m.axis] //= m.factor
    out[m.to] *= m.factor
    cut = graph.node(OPS["Reshape"], [x], shape=tuple(apart))
    turned = graph.node(OPS["Transpose"], [cut], perm=tuple(order))
    return graph.node(OPS["Reshape"], [turned], shape=tuple(out))
