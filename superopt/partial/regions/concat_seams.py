"""Find seams at which both programs concatenate along an axis, so that the parts are compared
separately.

One part may read its own channel (a pool) and another all channels (a convolution), so fewer
elements are interchangeable in all parts than in each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from superopt.te.analysis import affine
from superopt.te.expr import index
from superopt.te.expr.dtype import INDEX
from superopt.te.expr.node import Apply, Axis, Const, Expr

MAX_SEAM_PARTS = 8  # parts, each of which takes some time


class SeamPart(NamedTuple):
    """The start along the axis, and the programs there over axes that start at 0."""

    begin: int
    axes: tuple[Axis, ...]
    bodies: list[Expr]


def find_seams(axes: Sequence[Axis], bodies: Sequence[Expr]) -> tuple[int, list[SeamPart]] | None:
    """Return an axis and the parts along it, or None if no axis has the same seams in both
    programs."""
    for k, axis in enumerate(axes):
        found = [set(_seam_points(b, axis)) for b in bodies]
        points = found[0]
        if points and len(points) < MAX_SEAM_PARTS and all(f == points for f in found):
            assert isinstance(axis.extent, int)
            ends = [0, *sorted(points), axis.extent]
            return k, [_seam_part(axes, bodies, k, a, b) for a, b in pairwise(ends)]
    return None


def _seam_points(e: Expr, axis: Axis) -> Iterator[int]:
    """Yield the first places of parts after the first."""
    while isinstance(e, Apply) and e.fn == "select":
        guard, yes, e = e.args
        match guard:
            case Apply("lt", (Axis() as a, Const(n))) if a == axis:
                if isinstance(a.extent, int) and 0 < n < a.extent:
                    yield int(n)
        yield from _seam_points(yes, axis)


def _seam_part(
    axes: Sequence[Axis], bodies: Sequence[Expr], k: int, begin: int, end: int
) -> SeamPart:
    old = axes[k]
    new = Axis(f"{old.name}@{begin}:{end}", end - begin)
    at = index.as_index(new + begin) if end - begin > 1 else Const(begin, INDEX)
    own = [affine.substitute(b, {old: at}) for b in bodies]
    return SeamPart(begin, (*axes[:k], new, *axes[k + 1 :]), own)
