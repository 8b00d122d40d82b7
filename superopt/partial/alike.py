"""Decide at which places two programs are equal, by random inputs over a prime field and the reals.

For sums, products and quotients the field decides, up to a known chance of error. Maxima are
compared as sets of terms (`term_sets.py`). What neither decides is tested on floats
(`float_points.py`), where one difference proves inequality. If there is none, programs of maxima
and conditions are taken as equal if they have few terms, each of which is the maximum in some
input. The same functions of the same arguments are equal for any functions (`uninterpreted.py`).
Others are equal if they are equal over the field with uninterpreted functions, which satisfy few
laws. Otherwise the result is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from superopt.partial.aimed import Aimed, aimed
from superopt.partial.doubles import MOST, Doubles, compared, exact, plain, steps
from superopt.partial.extremes import OTHER, alone, by_terms, decided, extreme, kinds, numbers_of
from superopt.partial.fewer import columns, renamed, shortened, thinned
from superopt.partial.free import Free
from superopt.partial.named import named
from superopt.partial.points import DRAW, DRAWS, Points, ring, terms
from superopt.partial.shared import shared
from superopt.partial.stacked import stacked
from superopt.te.dtype import INDEX
from superopt.te.fn import function
from superopt.te.node import Apply, Axis, Const, Expr, Index, Load, Number, Reduce
from superopt.te.walk import parts

INPUTS = 2  # that are tried
ORDERED = 64  # where maxima are taken, which may be equal though their terms are not, at least
PEAKS = 8  # for each term of the longest maximum, so that each is the largest in some
MOST_ORDERED = DRAWS
FEW_PEAKS = 16  # terms, of which numbers alone say that they make no difference
MUCH = 1 << 15  # terms of sums, of which first few are computed
TRIED = 1 << 16  # elements of which more inputs are tried, where these are few
AIMED = 1 << 8  # elements, about, for which inputs are aimed at conditions
FIRST = 4  # inputs, of which one mostly tells that places differ
ABOVE = (0, None, 16, 1)  # sixteenths of the numbers that are above 0; any. Of each some inputs


@dataclass(frozen=True, slots=True)
class Alike:
    """Two programs in several forms: as given, with shortened sums (`shortened_sums.py`), and with
    nested sums as tensors (`nested_sums.py`).

    known: only rational functions and maxima. bounded: only rational functions. sets: maxima may be
    compared as term sets. free: functions may be uninterpreted, since no value is used as an index.
    fragile: a rounded number decides, so one input does not prove a difference. orders: the order
    of numbers, or a bool, matters. plain: see `is_piecewise_rational`. peaks: terms of the longest
    maximum. kinds: axes whose places are interchangeable (`interchangeable_columns`).
    """

    axes: Sequence[Axis]
    bodies: list[Expr]
    own: list[Expr]
    whole: Sequence[Expr]
    bounded: bool
    sets: bool
    free: bool
    orders: bool
    known: bool
    plain: bool
    fragile: bool
    peaks: int
    kinds: Sequence[tuple[list[int], int]]

    @staticmethod
    def of(axes: Sequence[Axis], bodies: Sequence[Expr]) -> Alike:
        bodies = named(stacked(bodies))
        short = shortened(bodies, axes)
        some = [e for b in bodies for e in parts(b) if e.dtype != INDEX]
        known = all(_rational(e) or extreme(e) for e in some)
        counted = any(map(_counts_infinities, some))
        known &= not counted
        free = not counted and not any(isinstance(e, Index) for b in bodies for e in parts(b))
        order, chance = any(map(_ordered, some)), any(map(_tossed, some))
        return Alike(
            axes, short, shared(short), bodies,
            bounded=known and not order and not chance,
            sets=order and not chance and by_terms(bodies),
            free=free,
            orders=order or chance,
            known=known,
            plain=all(map(plain, some)),
            fragile=any(map(steps, some)) and not all(map(exact, some)),
            peaks=max(map(_peaks, bodies)),
            kinds=columns(bodies, axes),
        )  # fmt: skip

    def at(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return at which places the programs are equal, and at which of the others this is
        unknown."""
        if not self.kinds:
            return self._at(places)
        some, which = np.unique(renamed(places, self.kinds), axis=0, return_inverse=True)
        same, doubtful = self._at(some)
        return same[which], doubtful[which]

    def _at(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        same = np.zeros(len(places), bool)
        doubtful = np.zeros_like(same)
        if not len(places):
            return same, doubtful
        if self.bounded:
            return self.over_field(places), doubtful
        if self.sets:
            same = self.of_same_terms(places)
            if decided(self.bodies) and self.known:
                return same, doubtful
        left = np.flatnonzero(~same)
        near, apart, written = self.over_reals(places[left])
        same[left[written]] = True
        left, near = left[~(apart | written)], near[~(apart | written)]
        if self.plain:
            sure = near & (not self.sets or len(kinds(self.bodies)) > 1 or self.peaks <= FEW_PEAKS)
        else:
            sure = near.copy()
            sure[near] = self.of_any(places[left[near]])
            some = np.flatnonzero(near & ~sure)
            sure[some] = self.over_keyed(places[left[some]])
        same[left[sure]] = True
        doubtful[left[~sure]] = True
        return same, doubtful

    @property
    def over_numbers(self) -> list[Expr]:
        """The programs with shortened sums, as far as that is valid over the reals."""
        return shortened(self.whole, self.axes, zeros=True)

    @property
    def alike(self) -> np.ndarray:
        """Return which axes have interchangeable places for any places of the other axes."""
        alone = {some[0] for some, _ in self.kinds if len(some) == 1}
        return np.array([n in alone for n in range(len(self.axes))], bool)

    @property
    def draws(self) -> int:
        return min(max(ORDERED, PEAKS * self.peaks), MOST_ORDERED)

    def of_same_terms(self, places: np.ndarray) -> np.ndarray:
        """Return the places with the same term sets, for any order of numbers."""
        numbers, caps = numbers_of(self.bodies), alone(self.bodies)
        if self.known:  # a second input is for chance, of which there is little
            count = INPUTS if len(places) * self.peaks <= MUCH else 1
            points = Points(0, numbers=numbers, alone=caps, draws=count)
            a, b = self.drawn(self.own, places, range(count), points)
            return np.asarray((a == b).all(1))
        return of_same_terms(self.axes, self.own, places, numbers, caps)

    def of_same_functions(self, places: np.ndarray) -> np.ndarray:
        """Return the places with the same sums and products of the same uninterpreted functions."""
        a, b = self.drawn(self.own, places, range(INPUTS), Free(0, draws=INPUTS))
        return np.asarray((a == b).all(1))

    def over_field(self, places: np.ndarray) -> np.ndarray:
        """Return the places at which no input over the field shows a difference. If much has to be
        computed, sums over window ends are compared first: most places that differ differ there."""
        left = np.arange(len(places))  # where it is not known yet
        components = 1 if all(map(ring, self.bodies)) else 2
        ends = thinned(self.bodies) if len(places) * terms(self.bodies[0]) > MUCH else []
        if ends and 2 * sum(map(terms, ends)) <= sum(map(terms, self.bodies)):
            points = Points(0, components=components)
            left = np.flatnonzero(_equal(self.axes, shared(ends), places, points))
        a, b = self.drawn(
            self.own, places[left], range(INPUTS), Points(1, components=components, draws=INPUTS)
        )
        same = np.zeros(len(places), bool)
        same[left] = (a == b).all(1)
        return same

    def drawn(
        self, bodies: Sequence[Expr], places: np.ndarray, draws: Sequence[int], points: Points
    ) -> list[np.ndarray]:
        """Evaluate the bodies at places for several inputs: (places, draws) each."""
        drawn = np.tile(draws, len(places))
        at = np.column_stack((places.repeat(len(draws), 0), drawn))
        some = (points.values(e, (*self.axes, DRAW), at) for e in bodies)
        return [x.reshape(len(places), len(draws)) for x in some]

    def over_keyed(self, places: np.ndarray) -> np.ndarray:
        """Return the places at which no input over a field with uninterpreted functions shows a
        difference. If maxima occur, numbers of any order are tried, and all negative, all positive
        and nearly all negative ones, which reveal the effect of zero padding."""
        left = np.arange(len(places))
        for seed, above in enumerate(ABOVE if self.orders else ABOVE[:1]):
            points = Points(seed, above=above, draws=INPUTS)
            a, b = self.drawn(self.own, places[left], range(INPUTS), points)
            left = left[(a == b).all(1)]
        same = np.zeros(len(places), bool)
        same[left] = True
        return same

    def of_any(self, places: np.ndarray) -> np.ndarray:
        """Return the places equal over floats for any functions: all laws of order hold there, but
        none of functions."""
        points = Doubles(0, centres=self.centres, wide=True, free=True)
        real = shared(self.over_numbers)
        with np.errstate(all="ignore"):
            a, b = self.drawn(real, places, range(self.draws), points)
        return np.asarray(compared(a, b, True)[0].all(1))

    @property
    def centres(self) -> tuple[float, ...]:
        """Numbers near which a program may change its behaviour."""
        numbers = [float(n) for n in numbers_of(self.bodies)]
        return tuple(s * n for n in numbers if abs(n) < DRAWS for s in (1, -1))

    def over_reals(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return three masks: places that are equal for all inputs, places that differ for some
        input, and places with the same uninterpreted functions, for which few inputs are tried."""
        points = Doubles(0, centres=self.centres, wide=self.plain)
        real = shared(self.over_numbers)
        near = np.ones(len(places), bool)
        apart, written = np.zeros_like(near), np.zeros_like(near)
        left, begin = np.arange(len(places)), 0
        for way in (*((1,) if not self.fragile else ()), FIRST, ORDERED, DRAWS):
            end = max(self.draws, min(way, TRIED // max(1, len(left)))) if way > ORDERED else way
            if not len(left) or end <= begin:
                break
            with np.errstate(all="ignore"):
                a, b = self.drawn(real, places[left], range(begin, end), points)
            same, other = compared(a, b, self.plain)
            near[left] &= same.all(1)
            least = 1 + self.fragile * (end - begin) // 4
            apart[left] = np.count_nonzero(other, axis=1) >= least
            left = left[~apart[left]]
            if self.free and not begin:
                written[left] = self.of_same_functions(places[left])
                left = left[~written[left]]
            begin = end
        self.aim(places, np.flatnonzero(near & ~apart & ~written), near, apart)
        return near, apart, written

    def aim(
        self, places: np.ndarray, left: np.ndarray, near: np.ndarray, apart: np.ndarray
    ) -> None:
        """Compare on targeted inputs at a sample of the undecided places. If numbers are rounded,
        one program may meet a condition that the other does not."""
        left = left[:: 1 + len(left) // AIMED]
        if not len(left):
            return
        bodies = self.over_numbers
        far = max(abs(n) for n in map(float, numbers_of(self.bodies)) if abs(n) <= MOST)
        anyhow = Doubles(0, centres=self.centres, wide=self.plain)
        points = Aimed(1, centres=self.centres, wide=self.plain, far=far)
        with np.errstate(all="ignore"):
            draws = aimed(points, anyhow, self.axes, bodies, places[left])
            if not draws:
                return
            a, b = self.drawn(shared(bodies), places[left], draws, points)
        same, other = compared(a, b, self.plain)
        near[left] = same.all(1)
        apart[left] = other.any(1) & (not self.fragile)


def of_same_terms(
    axes: Sequence[Axis],
    bodies: Sequence[Expr],
    places: np.ndarray,
    numbers: tuple[Number, ...],
    caps: str = "max",
) -> np.ndarray:
    """Return the places with the same term sets. caps: see `lone_cap_kind`."""
    same = np.ones(len(places), bool)
    for seed in range(INPUTS):
        there = np.flatnonzero(same)
        same[there] = _equal(axes, bodies, places[there], Points(seed, numbers=numbers, alone=caps))
    return same


def _equal(
    axes: Sequence[Axis], bodies: Sequence[Expr], places: np.ndarray, points: Points
) -> np.ndarray:
    a, b = (points.values(e, axes, places) for e in bodies)
    return np.asarray(a == b)


def _ordered(e: Expr) -> bool:
    """True for a comparison or a maximum."""
    if isinstance(e, Reduce):
        return e.fn in OTHER
    return isinstance(e, Apply) and e.args[0].dtype.is_float and function(e.fn).field == "order"


def _tossed(e: Expr) -> bool:
    """True if a bool or an integer is read, of which two may be equal by chance, or for an equality
    test of floats, which holds only by chance."""
    match e:
        case Load(t):
            return not t.dtype.is_float
        case Apply("eq" | "ne" | "isnan" | "isinf", args):
            return args[0].dtype.is_float
        case Apply("cast", (x,)):
            return x.dtype.is_float and not e.dtype.is_float
    return False


def _rational(e: Expr) -> bool:
    """True if the field satisfies all laws of this expression."""
    match e:
        case Const(value, dtype) if dtype.is_float:
            return value == value
        case Reduce(fn):
            return fn in ("sum", "prod")
        case Apply("pow", (_, by)):
            return isinstance(by, Const) and by.value in range(1, 65)
        case Apply(fn, args) if e.dtype.is_float or any(a.dtype.is_float for a in args):
            if fn == "cast":
                return e.dtype.is_float and (args[0].dtype == INDEX or args[0].dtype.is_float)
            return fn == "select" or function(fn).field in ("ring", "quotient")
    return True


def _counts_infinities(e: Expr) -> bool:
    """True if an infinity is an operand of arithmetic, which has laws of its own."""
    match e:
        case Reduce(fn, _, body):
            return fn not in OTHER and _infinite(body)
        case Apply(fn, args) if e.dtype.is_float and fn not in ("select", *OTHER):
            return any(map(_infinite, args))
    return False


def _infinite(e: Expr) -> bool:
    match e:
        case Const(value, dtype):
            return dtype.is_float and abs(float(value)) == float("inf")
        case Apply("select", (_, yes, no)):
            return _infinite(yes) or _infinite(no)
    return False


def _peaks(e: Expr) -> int:
    """Return the number of terms of the longest maximum."""
    match e:
        case Reduce(fn, axes, body):
            return prod(a.size for a in axes if fn in ("max", "min")) * _peaks(body)
        case Apply("max" | "min", args):
            return sum(map(_peaks, args))
        case Apply(_, args):
            return max(map(_peaks, args))
        case Load(_, index):
            return max(map(_peaks, index), default=1)
    return 1
