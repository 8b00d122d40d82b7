"""Operands that fit elementwise operators: shapes that broadcast."""

from __future__ import annotations

from superopt.rules.sample.ask import ABSENT, Ask, Fit
from superopt.rules.sample.draw import Draw, Hole, Shape, drawn, filled, full, known_rank


def broadcast(ask: Ask) -> Fit:
    """Choose shapes that broadcast: equal, shorter, with ones, scalars."""
    draw = ask.draw
    there = [h for h in ask.holes if h is not ABSENT]
    rank = max((len(h) for h in there if h is not None), default=0)
    if any(h is None for h in there) and not any(full(h) for h in there):
        rank = max(rank, draw.rank())  # declared scalars do not determine the others
    target: list[int] = []
    for a in range(-rank, 0):
        given = [h[a] for h in there if h is not None and len(h) >= -a and h[a] is not None]
        wide = [d for d in given if d is not None and d != 1]
        stays = given and draw.chance(0.6)  # else an axis of size 1 grows
        target.append(wide[0] if wide else 1 if stays else draw.size())
    return [like(h, tuple(target), draw) for h in ask.holes], {}


def like(h: Hole, target: Shape, draw: Draw) -> Shape:
    """Return a shape that broadcasts to `target`."""
    if h is ABSENT:
        return ()
    if h is not None:
        base = filled(h, target, draw)
        return tuple(
            1 if old is None and draw.chance(0.15) else n for old, n in zip(h, base, strict=True)
        )
    kind = draw.below(7)
    if kind < 3:
        return target
    if kind == 3:
        return target[draw.below(len(target) + 1) :]
    if kind == 4:
        return tuple(1 if draw.chance(0.4) else n for n in target)
    if kind == 5 and target:  # one axis, as a bias of channels has
        at = draw.below(len(target))
        lead = (1,) * at if draw.chance(0.5) else ()
        return (*lead, target[at], *(1,) * (len(target) - at - 1))
    return ()


def scalars_after(ask: Ask) -> Fit:
    """Choose any shape for the first operand, and one element for the others."""
    draw = ask.draw
    x = drawn(ask.holes[0], draw, draw.rank())
    return [x, *(drawn(h, draw, 0) for h in ask.holes[1:])], {}


def slope(ask: Ask) -> Fit:
    """Choose a second operand that broadcasts to the first."""
    x = drawn(ask.holes[0], ask.draw, ask.draw.rank())
    return [x, like(ask.holes[1], x, ask.draw)], {}


def same(ask: Ask) -> Fit:
    """Choose one shape for all operands."""
    rank = known_rank(*ask.holes)
    first = next((s for s in map(full, ask.holes) if s is not None), None)
    if first is None:
        first = ask.draw.shape(ask.draw.rank() if rank is None else rank)
    return [filled(h, first, ask.draw) for h in ask.holes], {}
