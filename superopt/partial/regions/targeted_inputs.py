"""Targeted inputs: inputs for which the sides of a comparison are equal or nearly equal, on both
sides of it. They cover conditions that few random inputs meet.

For each condition the gap between its sides is evaluated at some places, and one input element is
moved by secant steps until the gap has the target value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from superopt.partial.regions.float_points import NEGATIVE_SIXTEENTHS, ONE_SIGN_DRAWS, FloatPoints
from superopt.partial.regions.points import DRAW_AXIS, MAX_DRAWS, term_count
from superopt.te.analysis.affine import free_axes
from superopt.te.analysis.walk import share_subexpressions, subexpressions
from superopt.te.expr.dtype import BOOL, INDEX
from superopt.te.expr.functions import scalar_function
from superopt.te.expr.node import Apply, Axis, Const, Expr, Load
from superopt.te.expr.tensor import Tensor

COARSE_GAP, FINE_GAP = 2.0**-8, 2.0**-14
TARGET_GAPS = (0.0, COARSE_GAP, -COARSE_GAP, FINE_GAP, -FINE_GAP)  # that are wanted
RANDOM_GAPS = (*(0.0,) * 4, *TARGET_GAPS[1:])
SCALE_COUNT = 2
DRAWS_PER_CONDITION = len(TARGET_GAPS) * len(ONE_SIGN_DRAWS) * SCALE_COUNT  # draws for a condition
JOINT_DRAWS = 28  # draws for all of them at once
UNTARGETED_DRAWS = 64  # draws, in which most are met
MAX_CONDITIONS = 5  # conditions
MIN_LARGE_SCALE = 8  # times as large, where several must be, so that one can be moved; at least
MAX_MOVED_LOADS = 2  # of which one is moved
MAX_CONDITION_TERMS = 1 << 10  # terms of a sum in a condition
MAX_IDLE_STEPS = 2  # steps that may lead nowhere
SECANT_STEPS = (8, 1, *(COARSE_GAP,) * 6)  # by which an element is moved to see what that does

Sides = tuple[Expr, Expr | None, bool]  # of a condition, and whether it matters that they are equal


@dataclass(slots=True)
class TargetedPoints(FloatPoints):
    """Points with moved elements. moved: for each input the sorted positions and values of moved
    elements. far: about the largest number in the program."""

    largest_number: float = 0.0
    moved: dict[Tensor, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)

    def read(self, t: Tensor, where: np.ndarray, draw: np.ndarray | None) -> np.ndarray:
        x = super(TargetedPoints, self).read(t, where, draw)
        if t not in self.moved or draw is None:
            return x
        keys, values = self.moved[t]
        at = where * self.draws + draw
        found = np.minimum(np.searchsorted(keys, at), len(keys) - 1)
        return np.where(keys[found] == at, values[found].astype(x.dtype), x)

    def scale(self, turn: np.ndarray) -> np.ndarray:
        """Alternate rounds of draws use numbers beyond all numbers of the program."""
        return np.where(turn % SCALE_COUNT == 1, max(MIN_LARGE_SCALE, self.largest_number), 1.0)

    def move(self, t: Tensor, at: np.ndarray, to: np.ndarray) -> None:
        """Move elements. If several moves hit one element the last wins; others stay."""
        keys, values = self.moved.get(t, (np.zeros(0, np.int64), np.zeros(0)))
        keys, last = np.unique(np.concatenate((at, keys)), return_index=True)
        self.moved[t] = keys, np.concatenate((to, values))[last]


def find_conditions(bodies: Sequence[Expr]) -> list[Sides]:
    """Return the pairs of compared expressions, and rounded expressions, whose ties are halves of a
    step."""
    found = dict.fromkeys(
        x for b in share_subexpressions(bodies) for e in subexpressions(b) for x in _comparisons(e)
    )
    return [x for x in found if term_count(x[0]) <= MAX_CONDITION_TERMS][:MAX_CONDITIONS]


def _comparisons(e: Expr) -> Iterator[Sides]:
    match e:
        case Apply("lt" | "le" | "eq" | "ne" | "max" | "min", (a, b)):
            if a.dtype not in (BOOL, INDEX) and not (isinstance(a, Const) and isinstance(b, Const)):
                yield a, b, e.fn not in ("max", "min")
        case Apply("abs" | "sign", (a,)) if a.dtype not in (BOOL, INDEX):
            yield a, Const(0, a.dtype), e.fn == "sign"
        case Apply("cast", (a,)) if e.dtype == BOOL and a.dtype not in (BOOL, INDEX):
            yield a, Const(0, a.dtype), True
        case Apply(fn, (a,)) if a.dtype.is_float and fn != "select":
            if (
                scalar_function(fn).field_semantics == "whole"
                if fn != "cast"
                else not e.dtype.is_float
            ):
                yield a, None, True


def target_conditions(
    points: TargetedPoints,
    untargeted: FloatPoints,
    axes: Sequence[Axis],
    bodies: Sequence[Expr],
    places: np.ndarray,
) -> list[int]:
    """Move input elements to meet conditions that untargeted inputs do not cover. Return the draws
    that do. Only draws of one sign are used, in which a moved element becomes the minimum or
    maximum. Joint draws meet each condition on an independent side, since some hold only together.
    """
    draws = [d for d in range(MAX_DRAWS) if d % len(NEGATIVE_SIXTEENTHS) in ONE_SIGN_DRAWS]
    count, rare = 0, False
    gaps = np.tile(np.repeat(TARGET_GAPS, DRAWS_PER_CONDITION // len(TARGET_GAPS)), len(places))
    turning = []
    for sides in find_conditions(bodies):
        if not _Condition.sample(
            untargeted, axes, sides, places, range(UNTARGETED_DRAWS)
        ).is_covered():
            own = _Condition.sample(
                points, axes, sides, places, draws[count : count + DRAWS_PER_CONDITION]
            )
            own.move_to(points, gaps)
            count += DRAWS_PER_CONDITION
            if not own.has_two_sides():
                continue
            rare = True
        turning.append(sides)
    if rare and len(turning) > 1:
        some = draws[count : count + JOINT_DRAWS]
        rng = np.random.default_rng(0)
        for sides in turning:
            gaps = rng.choice(RANDOM_GAPS, len(places) * len(some))
            _Condition.sample(points, axes, sides, places, some).move_to(points, gaps)
        count += len(some)
    return draws[:count]


@dataclass(slots=True)
class _Condition:
    """A condition at sampled places. axes, at: the places, including those of sums; `count` draws
    each."""

    points: FloatPoints
    sides: Sides
    axes: tuple[Axis, ...]
    at: np.ndarray
    count: int

    @staticmethod
    def sample(
        points: FloatPoints,
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
        return _Condition(points, sides, (*axes, *over, DRAW_AXIS), at, len(draws))

    def is_covered(self) -> bool:
        """True if each place has draws on both sides, and ties where these matter."""
        _, other, ties = self.sides
        if other is None:
            return False
        gap = self.gap().reshape(-1, self.count)
        seen = [(gap > 0).any(1), (gap < 0).any(1), (gap == 0).any(1) | (not ties)]
        return bool(np.all(seen))

    def has_two_sides(self) -> bool:
        """True if any place meets two sides. Many conditions never do: a value clipped at 0 is not
        below it."""
        gap = self.gap()
        seen = [(gap > 0).any(), (gap < 0).any(), (gap == 0).any() and self.sides[2]]
        return self.sides[1] is None or sum(map(bool, seen)) > 1

    def target_gaps(self, gaps: np.ndarray) -> np.ndarray:
        """Return the target gaps rounded to gaps that the sides can have."""
        if self.sides[1] is None:
            return np.asarray(gaps + np.rint(2 * self.gap()) / 2)
        if self.sides[0].dtype.is_float:
            return gaps
        return np.where(np.abs(gaps) < COARSE_GAP, 0, np.sign(gaps))

    def gap(self) -> np.ndarray:
        a, b = (
            0.0 if e is None else self.points.values(e, self.axes, self.at).astype(np.float64)
            for e in self.sides[:2]
        )
        return np.asarray(a - b)

    def loads(self) -> list[Load]:
        """Return numeric input elements read by the sides, alternating between both."""
        found = [
            [e for e in subexpressions(x) if isinstance(e, Load) and e.tensor.body is None]
            for x in self.sides[:2]
            if x is not None
        ]
        each = [e for some in found for e in some if e.dtype not in (BOOL, INDEX)]
        return sorted(dict.fromkeys(each), key=lambda e: e.tensor.rank, reverse=True)[
            :MAX_MOVED_LOADS
        ]

    def move_to(self, points: TargetedPoints, gaps: np.ndarray) -> None:
        """Move elements so that the sides have these gaps, one for each place and draw."""
        wanted = self.target_gaps(gaps)
        for load in self.loads():
            keys = self.read_positions(load) * self.points.draws + self.at[:, -1]
            best, x, gap = (np.full(len(self.at), v) for v in (np.inf, 0.0, 0.0))
            far = np.ones(len(self.at))
            for n, step in enumerate(SECANT_STEPS):
                now, found = self.read(load.tensor, keys), self.gap()
                better = np.abs(found - wanted) < best
                if n > MAX_IDLE_STEPS and not better.any():
                    break
                far = np.where(better, 1, far / 4)
                x, gap = np.where(better, now, x), np.where(better, found, gap)
                best = np.abs(gap - wanted)
                left = best > FINE_GAP / 4 * (wanted % 0.5 != 0)
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

    def read_positions(self, load: Load) -> np.ndarray:
        """Return the positions read in an input; axes of inner sums are at 0."""
        inner = frozenset[Axis]().union(*map(free_axes, load.index)) - set(self.axes)
        axes = (*self.axes[:-1], *inner, DRAW_AXIS)
        none = np.zeros((len(self.at), len(inner)), np.int64)
        at = np.column_stack((self.at[:, :-1], none, self.at[:, -1]))
        out = np.zeros(len(at), np.int64)
        for i, n in zip(load.index, load.tensor.shape, strict=True):
            assert isinstance(n, int)
            out = out * n + np.clip(self.points.values(i, axes, at), 0, n - 1)
        return out
