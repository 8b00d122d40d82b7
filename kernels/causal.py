"""How many keys a query of an attention can see, where its mask compares their places.

A key that is left out by -inf takes no part in sums: its power is 0. By a finite number that is so
only where scores cannot make up for it. Of keys that lie in memory as float16 none is above 65504,
so that no score is larger than the sum of the query's numbers times that, which a kernel looks at.
What is no number in a key or a value that is left out reaches no result, where it would reach all.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np

from superopt.te import index as ix
from superopt.te.dtype import F16, INDEX
from superopt.te.node import Apply, Axis, Const, Expr, Load

POWER = 200.0  # below minus this a float32's power is 0
ROUND = 1.01  # what a sum may be above its exact value


@dataclass(frozen=True, slots=True)
class Seen:
    """Of keys j a query i needs those with j <= i + offset. norm: where the sum of its numbers'
    sizes is no larger; None: whatever they are."""

    offset: int
    norm: float | None


def seen(x: Expr, i: Axis, j: Axis, held: Load | None, keys: object) -> Seen | None:
    """What a mask in the scores `x` leaves, of the product `held` and of `keys` of that type; None
    where it leaves out none, or where they cannot be told."""
    found = _masked(x, i, j)
    if found is None:
        return None
    offset, least, rest = found
    if least == -inf:
        return Seen(offset, None)
    scale = _scale(rest, held)
    if offset < 0 or keys != F16 or scale is None or not least < -POWER:
        return None
    largest = float(np.finfo(np.float16).max) * abs(scale) * 2 * ROUND
    return Seen(offset, (-least - POWER) / largest if largest else None)


def scaled(
    x: Expr, i: Axis, j: Axis, held: Load, largest: float
) -> tuple[float, int | None] | None:
    """The number with which the product `held`, of at most this size, is multiplied in the scores,
    and the offset of a mask that no score makes up for, if there is one; None where there is more
    in them."""
    found = _masked(x, i, j)
    offset, least, rest = (None, -inf, x) if found is None else found
    scale = _scale(rest, held)
    if scale is None or not (least == -inf or least < -2 * ROUND * largest * abs(scale) - POWER):
        return None
    return scale, offset


def _masked(x: Expr, i: Axis, j: Axis) -> tuple[int, float, Expr] | None:
    """(offset, what those behind it become or get, what it is of): of one mask in `x`."""
    match x:
        case Apply("select", (test, yes, no)):
            found = _side(test, i, j)
            if found is not None:
                offset, keeps = found
                kept, least = (yes, no) if keeps else (no, yes)
                if isinstance(least, Const):
                    return offset, float(least.value), kept
        case Apply("add", (a, b)):
            for e, other in ((a, b), (b, a)):
                inner = _masked(e, i, j)
                if inner is None:
                    continue
                offset, least_, kept = inner
                if kept == Const(0, kept.dtype):
                    return offset, least_, other
                if least_ == -inf:
                    return offset, least_, x
    return None


def _side(test: Expr, i: Axis, j: Axis) -> tuple[int, bool] | None:
    """(offset, does the test hold for j <= i + offset, or for all others?)"""
    match test:
        case Apply("not", (inner,)):
            found = _side(inner, i, j)
            return None if found is None else (found[0], not found[1])
        case Apply("le" | "lt" as fn, (a, b)) if a.dtype == b.dtype == INDEX:
            terms = dict(ix.polynomial(ix.as_index(b - a)))
            c = terms.pop((), 0) - (fn == "lt")
            if terms == {(i,): 1, (j,): -1}:
                return c, True
            if terms == {(i,): -1, (j,): 1}:
                return -c - 1, False
    return None


def _scale(e: Expr, held: Load | None) -> float | None:
    """The number by which the product is multiplied in `e`; None where there is more in it."""
    match e:
        case Load():
            return 1.0 if e == held else None
        case Apply("mul", (a, Const(c))) | Apply("mul", (Const(c), a)):
            found = _scale(a, held)
            return None if found is None else found * float(c)
        case Apply("div", (a, Const(c))) if c:
            found = _scale(a, held)
            return None if found is None else found / float(c)
    return None
