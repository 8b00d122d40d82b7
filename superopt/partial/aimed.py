"""Targeted inputs: inputs for which the sides of a comparison are equal or nearly equal, on both
sides of it. They cover conditions that few random inputs meet.

For each condition the gap between its sides is evaluated at some places, and one input element is
moved by secant steps until the gap has the target value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from superopt.partial.doubles import ONE_SIGN, SIGNED, Doubles
from superopt.partial.points import DRAW, DRAWS, terms
from superopt.te.affine import free_axes
from superopt.te.dtype import BOOL, INDEX
from superopt.te.expr import Tensor
from superopt.te.fn import function
from superopt.te.node import Apply, Axis, Const, Expr, Load
from superopt.te.walk import once, parts

NEAR, NEARER = 2.0**-8, 2.0**-14
GAPS = (0.0, NEAR, -NEAR, NEARER, -NEARER)  # that are wanted
OFTEN_NONE = (*(0.0,) * 4, *GAPS[1:])
SCALES = 2
EACH = len(GAPS) * len(ONE_SIGN) * SCALES  # draws for a condition
TOGETHER = 28  # draws for all of them at once
ANYHOW = 64  # draws, in which most are met
MOST = 5  # conditions
LARGE = 8  # times as large, where several must be, so that one can be moved; at least
LOADS = 2  # of which one is moved
LONGEST = 1 << 10  # terms of a sum in a condition
PATIENCE = 2  # steps that may lead nowhere
STEPS = (8, 1, *(NEAR,) * 6)  # by which an element is moved to see what that does

Sides = tuple[Expr, Expr | None, bool]  # of a condition, and whether it matters that they are equal


@dataclass(slots=True)
class Aimed(Doubles):
    """Points with moved elements. moved: for each input the sorted positions and values of moved
    elements. far: about the largest number in the program."""

    far: float = 0.0
    moved: dict[Tensor, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)

    def read(self, t: Tensor, where: np.ndarray, draw: np.ndarray | None) -> np.ndarray:
        x = super(Aimed, self).read(t, where, draw)
        if t not in self.moved or draw is None:
            return x
        keys, values = self.moved[t]
        at = where * self.draws + draw
        found = np.minimum(np.searchsorted(keys, at), len(keys) - 1)
        return np.where(keys[found] == at, values[found].astype(x.dtype), x)

    def scale(self, turn: np.ndarray) -> np.ndarray:
        """Alternate rounds of draws use numbers beyond all numbers of the program."""
        return np.where(turn % SCALES == 1, max(LARGE, self.far), 1.0)

    def move(self, t: Tensor, at: np.ndarray, to: np.ndarray) -> None:
        """Move elements. If several moves hit one element the last wins; others stay."""
        keys, values = self.moved.get(t, (np.zeros(0, np.int64), np.zeros(0)))
        keys, last = np.unique(np.concatenate((at, keys)), return_index=True)
        self.moved[t] = keys, np.concatenate((to, values))[last]


def conditions(bodies: Sequence[Expr]) -> list[Sides]:
    """Return the pairs of compared expressions, and rounded expressions, whose ties are halves of a
    step."""
    found = dict.fromkeys(x for b in once(bodies) for e in parts(b) for x in _compared(e))
    return [x for x in found if terms(x[0]) <= LONGEST][:MOST]


def _compared(e: Expr) -> Iterator[Sides]:
    match e:
        case Apply("lt" | "le" | "eq" | "ne" | "max" | "min", (a, b)):
            if a.dtype not in (BOOL, INDEX) and not (isinstance(a, Const) and isinstance(b, Const)):
                yield a, b, e.fn not in ("max", "min")
        case Apply("abs" | "sign", (a,)) if a.dtype not in (BOOL, INDEX):
            yield a, Const(0, a.dtype), e.fn == "sign"
        case Apply("cast", (a,)) if e.dtype == BOOL and a.dtype not in (BOOL, INDEX):
            yield a, Const(0, a.dtype), True
        case Apply(fn, (a,)) if a.dtype.is_float and fn != "select":
            if function(fn).field == "whole" if fn != "cast" else not e.dtype.is_float:
                yield a, None, True


def aimed(
    points: Aimed,
    anyhow: Doubles,
    axes: Sequence[Axis],
    bodies: Sequence[Expr],
    places: np.ndarray,
) -> list[int]:
    """Move input elements to meet conditions that untargeted inputs do not cover. Return the draws
    that do. Only draws of one sign are used, in which a moved element becomes the minimum or
    maximum. Joint draws meet each condition on an independent side, since some hold only together.
    """
    draws = [d for d in range(DRAWS) if d % len(SIGNED) in ONE_SIGN]
    count, rare = 0, False
    gaps = np.tile(np.repeat(GAPS, EACH // len(GAPS)), len(places))
    turning = []
    for sides in conditions(bodies):
        if not _Condition.of(anyhow, axes, sides, places, range(ANYHOW)).met():
            own = _Condition.of(points, axes, sides, places, draws[count : count + EACH])
            own.meet(points, gaps)
            count += EACH
            if not own.turns():
                continue
            rare = True
        turning.append(sides)
    if rare and len(turning) > 1:
        some = draws[count : count + TOGETHER]
        rng = np.random.default_rng(0)
        for sides in turning:
            gaps = rng.choice(OFTEN_NONE, len(places) * len(some))
            _Condition.of(points, axes, sides, places, some).meet(points, gaps)
        count += len(some)
    return draws[:count]


@dataclass(slots=True)
class _Condition:
    """A condition at sampled places. axes, at: the places, including those of sums; `count` draws
    each."""

    points: Doubles
    sides: Sides
    axes: tuple[Axis, ...]
    at: np.ndarray
    count: int

    @staticmethod
    def of(
        points: Doubles,
        axes: Sequence[Axis],
        sides: Sides,
        places: np.ndarray,
        draws: Sequence[int],
    ) -> _Condition:
        free = frozenset[Axis]().union(*(free_axes(e) for e in sides[:2] if e is not None))
        over = sorted(free - set(axes), key=str)
        at = places.repeat(len(draws), 0)
        rng = np.random.default_rng(0)
        inner = [rng.integers(0, max(1, a.size), len(at)) for a in over]
        at = np.column_stack((at, *inner, np.tile(draws, len(places))))
        return _Condition(points, sides, (*axes, *over, DRAW), at, len(draws))

    def met(self) -> bool:
        """True if each place has draws on both sides, and ties where these matter."""
        _, other, ties = self.sides
        if other is None:
            return False
        gap = self.gap().reshape(-1, self.count)
        seen = [(gap > 0).any(1), (gap < 0).any(1), (gap == 0).any(1) | (not ties)]
        return bool(np.all(seen))

    def turns(self) -> bool:
        """True if any place meets two sides. Many conditions never do: a value clipped at 0 is not
        below it."""
        gap = self.gap()
        seen = [(gap > 0).any(), (gap < 0).any(), (gap == 0).any() and self.sides[2]]
        return self.sides[1] is None or sum(map(bool, seen)) > 1

    def wanted(self, gaps: np.ndarray) -> np.ndarray:
        """Return the target gaps rounded to gaps that the sides can have."""
        if self.sides[1] is None:
            return np.asarray(gaps + np.rint(2 * self.gap()) / 2)
        if self.sides[0].dtype.is_float:
            return gaps
        return np.where(np.abs(gaps) < NEAR, 0, np.sign(gaps))

    def gap(self) -> np.ndarray:
        a, b = (
            0.0 if e is None else self.points.values(e, self.axes, self.at).astype(np.float64)
            for e in self.sides[:2]
        )
        return np.asarray(a - b)

    def loads(self) -> list[Load]:
        """Return numeric input elements read by the sides, alternating between both."""
        found = [
            [e for e in parts(x) if isinstance(e, Load) and e.tensor.body is None]
            for x in self.sides[:2]
            if x is not None
        ]
        each = [e for some in found for e in some if e.dtype not in (BOOL, INDEX)]
        return sorted(dict.fromkeys(each), key=lambda e: e.tensor.rank, reverse=True)[:LOADS]

    def meet(self, points: Aimed, gaps: np.ndarray) -> None:
        """Move elements so that the sides have these gaps, one for each place and draw."""
        wanted = self.wanted(gaps)
        for load in self.loads():
            keys = self.where(load) * self.points.draws + self.at[:, -1]
            best, x, gap = (np.full(len(self.at), v) for v in (np.inf, 0.0, 0.0))
            far = np.ones(len(self.at))
            for n, step in enumerate(STEPS):
                now, found = self.read(load.tensor, keys), self.gap()
                better = np.abs(found - wanted) < best
                if n > PATIENCE and not better.any():
                    break
                far = np.where(better, 1, far / 4)
                x, gap = np.where(better, now, x), np.where(better, found, gap)
                best = np.abs(gap - wanted)
                left = best > NEARER / 4 * (wanted % 0.5 != 0)
                step = step if load.dtype.is_float else max(step, 1)
                points.move(load.tensor, keys, x + step)
                to = x + far * (wanted - gap) * step / (self.gap() - gap) if left.any() else x
                to = to if load.dtype.is_float else np.rint(to)
                points.move(load.tensor, keys, np.where(left & np.isfinite(to), to, x))
                if not left.any():
                    return

    def read(self, t: Tensor, keys: np.ndarray) -> np.ndarray:
        x = self.points.read(t, *np.divmod(keys, self.points.draws))
        return np.asarray(x[0] if t.dtype.is_float else x, np.float64)

    def where(self, load: Load) -> np.ndarray:
        """Return the positions read in an input; axes of inner sums are at 0."""
        inner = frozenset[Axis]().union(*map(free_axes, load.index)) - set(self.axes)
        axes = (*self.axes[:-1], *inner, DRAW)
        none = np.zeros((len(self.at), len(inner)), np.int64)
        at = np.column_stack((self.at[:, :-1], none, self.at[:, -1]))
        out = np.zeros(len(at), np.int64)
        for i, n in zip(load.index, load.tensor.shape, strict=True):
            assert isinstance(n, int)
            out = out * n + np.clip(self.points.values(i, axes, at), 0, n - 1)
        return out
