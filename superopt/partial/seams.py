"""Where both programs join the same parts along an axis, which are compared one by one.

What is read by one part (a pool's own channel) is not what is read by another (a convolution's all
channels), so that less is alike of all of them than of each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from superopt.te import affine
from superopt.te import index as ix
from superopt.te.dtype import INDEX
from superopt.te.node import Apply, Axis, Const, Expr

MOST = 8  # parts, each of which takes some time


class Part(NamedTuple):
    """From where on along the axis, and the programs there, by axes that count from 0."""

    begin: int
    axes: tuple[Axis, ...]
    bodies: list[Expr]


def seams(axes: Sequence[Axis], bodies: Sequence[Expr]) -> tuple[int, list[Part]] | None:
    """The number of an axis, and the parts along it; None where not both programs have the same
    seams along an axis."""
    for k, axis in enumerate(axes):
        found = [set(_joined(b, axis)) for b in bodies]
        points = found[0]
        if points and len(points) < MOST and all(f == points for f in found):
            assert isinstance(axis.extent, int)
            ends = [0, *sorted(points), axis.extent]
            return k, [_part(axes, bodies, k, a, b) for a, b in pairwise(ends)]
    return None


def _joined(e: Expr, axis: Axis) -> Iterator[int]:
    """The first places of parts behind others."""
    while isinstance(e, Apply) and e.fn == "select":
        guard, yes, e = e.args
        match guard:
            case Apply("lt", (Axis() as a, Const(n))) if a == axis:
                if isinstance(a.extent, int) and 0 < n < a.extent:
                    yield int(n)
        yield from _joined(yes, axis)


def _part(axes: Sequence[Axis], bodies: Sequence[Expr], k: int, begin: int, end: int) -> Part:
    old = axes[k]
    new = Axis(f"{old.name}@{begin}:{end}", end - begin)
    at = ix.as_index(new + begin) if end - begin > 1 else Const(begin, INDEX)
    own = [affine.substitute(b, {old: at}) for b in bodies]
    return Part(begin, (*axes[:k], new, *axes[k + 1 :]), own)
