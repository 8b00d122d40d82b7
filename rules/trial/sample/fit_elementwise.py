"""Operands that fit elementwise operators: shapes that broadcast."""

from __future__ import annotations

from superopt.rules.trial.sample.draw import (
    Draw,
    PartialShape,
    Shape,
    complete_like,
    draw_shape,
    full_shape,
    known_rank,
)
from superopt.rules.trial.sample.request import ABSENT, Fit, FitRequest


def fit_broadcast(request: FitRequest) -> Fit:
    """Choose shapes that broadcast: equal, shorter, with ones, scalars."""
    draw = request.draw
    there = [h for h in request.partial_shapes if h is not ABSENT]
    rank = max((len(h) for h in there if h is not None), default=0)
    if any(h is None for h in there) and not any(full_shape(h) for h in there):
        rank = max(rank, draw.rank())  # declared scalars do not determine the others
    target: list[int] = []
    for a in range(-rank, 0):
        aligned = [h[a] for h in there if h is not None and len(h) >= -a]
        given = [d for d in aligned if d is not None]
        wide = [d for d in given if d != 1]
        stays = given and draw.chance(0.6)  # else an axis of size 1 grows
        target.append(wide[0] if wide else 1 if stays else draw.size())
    return [broadcastable_shape(h, tuple(target), draw) for h in request.partial_shapes], {}


def broadcastable_shape(shape: PartialShape, target: Shape, draw: Draw) -> Shape:
    """Return a shape that broadcasts to `target`."""
    if shape is ABSENT:
        return ()
    if shape is not None:
        base = complete_like(shape, target, draw)
        return tuple(
            1 if old is None and draw.chance(0.15) else n
            for old, n in zip(shape, base, strict=True)
        )
    kind = draw.integer_below(7)
    if kind < 3:
        return target
    if kind == 3:
        return target[draw.integer_below(len(target) + 1) :]
    if kind == 4:
        return tuple(1 if draw.chance(0.4) else n for n in target)
    if kind == 5 and target:  # one axis, as a bias of channels has
        at = draw.integer_below(len(target))
        lead = (1,) * at if draw.chance(0.5) else ()
        return (*lead, target[at], *(1,) * (len(target) - at - 1))
    return ()


def fit_scalars_after(request: FitRequest) -> Fit:
    """Choose any shape for the first operand, and one element for the others."""
    draw = request.draw
    x = draw_shape(request.partial_shapes[0], draw, draw.rank())
    return [x, *(draw_shape(h, draw, 0) for h in request.partial_shapes[1:])], {}


def fit_slope(request: FitRequest) -> Fit:
    """Choose a second operand that broadcasts to the first."""
    x = draw_shape(request.partial_shapes[0], request.draw, request.draw.rank())
    return [x, broadcastable_shape(request.partial_shapes[1], x, request.draw)], {}


def fit_same_shape(request: FitRequest) -> Fit:
    """Choose one shape for all operands."""
    rank = known_rank(*request.partial_shapes)
    first = next((s for s in map(full_shape, request.partial_shapes) if s is not None), None)
    if first is None:
        first = request.draw.shape(request.draw.rank() if rank is None else rank)
    return [complete_like(h, first, request.draw) for h in request.partial_shapes], {}
