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

import numpy as np

from superopt.partial.regions.expression_classes import (
    counts_infinities,
    is_chance_dependent,
    is_order_dependent,
    longest_maximum,
    satisfies_field_laws,
)
from superopt.partial.regions.float_points import (
    MAX_VISIBLE_NUMBER,
    FloatPoints,
    compare_floats,
    is_discontinuous,
    is_exact,
    is_piecewise_rational,
)
from superopt.partial.regions.nested_sums import share_nested_sums
from superopt.partial.regions.points import (
    DRAW_AXIS,
    MAX_DRAWS,
    Points,
    is_ring_expression,
    term_count,
)
from superopt.partial.regions.shortened_sums import (
    canonical_places,
    interchangeable_columns,
    shorten_sums,
    thin_windows,
)
from superopt.partial.regions.stacked_branches import stack_branches
from superopt.partial.regions.targeted_inputs import TargetedPoints, target_conditions
from superopt.partial.regions.term_sets import (
    depends_on_terms_only,
    extremum_kind,
    extremum_kinds,
    float_constants,
    lone_cap_kind,
    sets_decide,
)
from superopt.partial.regions.uninterpreted import UninterpretedPoints
from superopt.partial.regions.unique_axes import with_unique_axes
from superopt.te.analysis.walk import subexpressions
from superopt.te.expr.dtype import INDEX
from superopt.te.expr.node import Axis, Expr, Index, Number

FIELD_INPUTS = 2  # that are tried
MIN_ORDERED_DRAWS = (
    64  # where maxima are taken, which may be equal though their terms are not, at least
)
DRAWS_PER_TERM = 8  # for each term of the longest maximum, so that each is the largest in some
MAX_ORDERED_DRAWS = MAX_DRAWS
MAX_SAMPLED_TERMS = 16  # terms, of which numbers alone say that they make no difference
MAX_FIRST_TERMS = 1 << 15  # terms of sums, of which first few are computed
MAX_TRIED_ELEMENTS = 1 << 16  # elements of which more inputs are tried, where these are few
MAX_TARGETED_PLACES = 1 << 8  # elements, about, for which inputs are aimed at conditions
FIRST_DRAWS = 4  # inputs, of which one mostly tells that places differ
POSITIVE_SIXTEENTHS = (
    0,
    None,
    16,
    1,
)  # sixteenths of the numbers that are above 0; any. Of each some inputs


@dataclass(frozen=True, slots=True)
class Comparison:
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
    shared_bodies: list[Expr]
    full_bodies: Sequence[Expr]
    is_rational: bool
    by_term_sets: bool
    by_uninterpreted: bool
    depends_on_order: bool
    is_rational_or_extremum: bool
    is_piecewise_rational: bool
    is_discontinuous: bool
    max_terms: int
    column_groups: Sequence[tuple[list[int], int]]

    @staticmethod
    def from_bodies(axes: Sequence[Axis], bodies: Sequence[Expr]) -> Comparison:
        bodies = with_unique_axes(stack_branches(bodies))
        short = shorten_sums(bodies, axes)
        some = [e for b in bodies for e in subexpressions(b) if e.dtype != INDEX]
        known = all(satisfies_field_laws(e) or extremum_kind(e) for e in some)
        counted = any(map(counts_infinities, some))
        known &= not counted
        free = not counted and not any(
            isinstance(e, Index) for b in bodies for e in subexpressions(b)
        )
        order, chance = any(map(is_order_dependent, some)), any(map(is_chance_dependent, some))
        return Comparison(
            axes, short, share_nested_sums(short), bodies,
            is_rational=known and not order and not chance,
            by_term_sets=order and not chance and depends_on_terms_only(bodies),
            by_uninterpreted=free,
            depends_on_order=order or chance,
            is_rational_or_extremum=known,
            is_piecewise_rational=all(map(is_piecewise_rational, some)),
            is_discontinuous=any(map(is_discontinuous, some)) and not all(map(is_exact, some)),
            max_terms=max(map(longest_maximum, bodies)),
            column_groups=interchangeable_columns(bodies, axes),
        )  # fmt: skip

    def compare(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return at which places the programs are equal, and at which of the others this is
        unknown."""
        if not self.column_groups:
            return self._compare(places)
        some, which = np.unique(
            canonical_places(places, self.column_groups), axis=0, return_inverse=True
        )
        same, doubtful = self._compare(some)
        return same[which], doubtful[which]

    def _compare(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        same = np.zeros(len(places), bool)
        doubtful = np.zeros_like(same)
        if not len(places):
            return same, doubtful
        if self.is_rational:
            return self.equal_over_field(places), doubtful
        if self.by_term_sets:
            same = self.equal_term_sets(places)
            if sets_decide(self.bodies) and self.is_rational_or_extremum:
                return same, doubtful
        left = np.flatnonzero(~same)
        near, apart, written = self.compare_over_reals(places[left])
        same[left[written]] = True
        left, near = left[~(apart | written)], near[~(apart | written)]
        if self.is_piecewise_rational:
            sure = near & (
                not self.by_term_sets
                or len(extremum_kinds(self.bodies)) > 1
                or self.max_terms <= MAX_SAMPLED_TERMS
            )
        else:
            sure = near.copy()
            sure[near] = self.equal_for_any_functions(places[left[near]])
            some = np.flatnonzero(near & ~sure)
            sure[some] = self.equal_over_keyed_field(places[left[some]])
        same[left[sure]] = True
        doubtful[left[~sure]] = True
        return same, doubtful

    @property
    def real_bodies(self) -> list[Expr]:
        """The programs with shortened sums, as far as that is valid over the reals."""
        return shorten_sums(self.full_bodies, self.axes, over_reals=True)

    @property
    def interchangeable_axes(self) -> np.ndarray:
        """Return which axes have interchangeable places for any places of the other axes."""
        alone = {some[0] for some, _ in self.column_groups if len(some) == 1}
        return np.array([n in alone for n in range(len(self.axes))], bool)

    @property
    def draws(self) -> int:
        return min(max(MIN_ORDERED_DRAWS, DRAWS_PER_TERM * self.max_terms), MAX_ORDERED_DRAWS)

    def equal_term_sets(self, places: np.ndarray) -> np.ndarray:
        """Return the places with the same term sets, for any order of numbers."""
        numbers, caps = float_constants(self.bodies), lone_cap_kind(self.bodies)
        if self.is_rational_or_extremum:  # a second input is for chance, of which there is little
            count = FIELD_INPUTS if len(places) * self.max_terms <= MAX_FIRST_TERMS else 1
            points = Points(0, numbers=numbers, lone_cap_kind=caps, draws=count)
            a, b = self.sample(self.shared_bodies, places, range(count), points)
            return np.asarray((a == b).all(1))
        return equal_term_sets(self.axes, self.shared_bodies, places, numbers, caps)

    def equal_uninterpreted(self, places: np.ndarray) -> np.ndarray:
        """Return the places with the same sums and products of the same uninterpreted functions."""
        a, b = self.sample(
            self.shared_bodies,
            places,
            range(FIELD_INPUTS),
            UninterpretedPoints(0, draws=FIELD_INPUTS),
        )
        return np.asarray((a == b).all(1))

    def equal_over_field(self, places: np.ndarray) -> np.ndarray:
        """Return the places at which no input over the field shows a difference. If much has to be
        computed, sums over window ends are compared first: most places that differ differ there."""
        left = np.arange(len(places))  # where it is not known yet
        components = 1 if all(map(is_ring_expression, self.bodies)) else 2
        ends = (
            thin_windows(self.bodies)
            if len(places) * term_count(self.bodies[0]) > MAX_FIRST_TERMS
            else []
        )
        if ends and 2 * sum(map(term_count, ends)) <= sum(map(term_count, self.bodies)):
            points = Points(0, components=components)
            left = np.flatnonzero(_equal(self.axes, share_nested_sums(ends), places, points))
        a, b = self.sample(
            self.shared_bodies,
            places[left],
            range(FIELD_INPUTS),
            Points(1, components=components, draws=FIELD_INPUTS),
        )
        same = np.zeros(len(places), bool)
        same[left] = (a == b).all(1)
        return same

    def sample(
        self, bodies: Sequence[Expr], places: np.ndarray, draws: Sequence[int], points: Points
    ) -> list[np.ndarray]:
        """Evaluate the bodies at places for several inputs: (places, draws) each."""
        drawn = np.tile(draws, len(places))
        at = np.column_stack((places.repeat(len(draws), 0), drawn))
        some = (points.values(e, (*self.axes, DRAW_AXIS), at) for e in bodies)
        return [x.reshape(len(places), len(draws)) for x in some]

    def equal_over_keyed_field(self, places: np.ndarray) -> np.ndarray:
        """Return the places at which no input over a field with uninterpreted functions shows a
        difference. If maxima occur, numbers of any order are tried, and all negative, all positive
        and nearly all negative ones, which reveal the effect of zero padding."""
        left = np.arange(len(places))
        for seed, above in enumerate(
            POSITIVE_SIXTEENTHS if self.depends_on_order else POSITIVE_SIXTEENTHS[:1]
        ):
            points = Points(seed, above=above, draws=FIELD_INPUTS)
            a, b = self.sample(self.shared_bodies, places[left], range(FIELD_INPUTS), points)
            left = left[(a == b).all(1)]
        same = np.zeros(len(places), bool)
        same[left] = True
        return same

    def equal_for_any_functions(self, places: np.ndarray) -> np.ndarray:
        """Return the places equal over floats for any functions: all laws of order hold there, but
        none of functions."""
        points = FloatPoints(0, centres=self.centres, wide=True, uninterpreted=True)
        real = share_nested_sums(self.real_bodies)
        with np.errstate(all="ignore"):
            a, b = self.sample(real, places, range(self.draws), points)
        return np.asarray(compare_floats(a, b, True)[0].all(1))

    @property
    def centres(self) -> tuple[float, ...]:
        """Numbers near which a program may change its behaviour."""
        numbers = [float(n) for n in float_constants(self.bodies)]
        return tuple(s * n for n in numbers if abs(n) < MAX_DRAWS for s in (1, -1))

    def compare_over_reals(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return three masks: places that are equal for all inputs, places that differ for some
        input, and places with the same uninterpreted functions, for which few inputs are tried."""
        points = FloatPoints(0, centres=self.centres, wide=self.is_piecewise_rational)
        real = share_nested_sums(self.real_bodies)
        near = np.ones(len(places), bool)
        apart, written = np.zeros_like(near), np.zeros_like(near)
        left, begin = np.arange(len(places)), 0
        for way in (
            *((1,) if not self.is_discontinuous else ()),
            FIRST_DRAWS,
            MIN_ORDERED_DRAWS,
            MAX_DRAWS,
        ):
            end = (
                max(self.draws, min(way, MAX_TRIED_ELEMENTS // max(1, len(left))))
                if way > MIN_ORDERED_DRAWS
                else way
            )
            if not len(left) or end <= begin:
                break
            with np.errstate(all="ignore"):
                a, b = self.sample(real, places[left], range(begin, end), points)
            same, other = compare_floats(a, b, self.is_piecewise_rational)
            near[left] &= same.all(1)
            least = 1 + self.is_discontinuous * (end - begin) // 4
            apart[left] = np.count_nonzero(other, axis=1) >= least
            left = left[~apart[left]]
            if self.by_uninterpreted and not begin:
                written[left] = self.equal_uninterpreted(places[left])
                left = left[~written[left]]
            begin = end
        self.compare_targeted(places, np.flatnonzero(near & ~apart & ~written), near, apart)
        return near, apart, written

    def compare_targeted(
        self, places: np.ndarray, left: np.ndarray, near: np.ndarray, apart: np.ndarray
    ) -> None:
        """Compare on targeted inputs at a sample of the undecided places. If numbers are rounded,
        one program may meet a condition that the other does not."""
        left = left[:: 1 + len(left) // MAX_TARGETED_PLACES]
        if not len(left):
            return
        bodies = self.real_bodies
        far = max(
            abs(n) for n in map(float, float_constants(self.bodies)) if abs(n) <= MAX_VISIBLE_NUMBER
        )
        anyhow = FloatPoints(0, centres=self.centres, wide=self.is_piecewise_rational)
        points = TargetedPoints(
            1, centres=self.centres, wide=self.is_piecewise_rational, largest_number=far
        )
        with np.errstate(all="ignore"):
            draws = target_conditions(points, anyhow, self.axes, bodies, places[left])
            if not draws:
                return
            a, b = self.sample(share_nested_sums(bodies), places[left], draws, points)
        same, other = compare_floats(a, b, self.is_piecewise_rational)
        near[left] = same.all(1)
        apart[left] = other.any(1) & (not self.is_discontinuous)


def equal_term_sets(
    axes: Sequence[Axis],
    bodies: Sequence[Expr],
    places: np.ndarray,
    numbers: tuple[Number, ...],
    lone_cap_kind: str = "max",
) -> np.ndarray:
    """Return the places with the same term sets. caps: see `lone_cap_kind`."""
    same = np.ones(len(places), bool)
    for seed in range(FIELD_INPUTS):
        there = np.flatnonzero(same)
        same[there] = _equal(
            axes, bodies, places[there], Points(seed, numbers=numbers, lone_cap_kind=lone_cap_kind)
        )
    return same


def _equal(
    axes: Sequence[Axis], bodies: Sequence[Expr], places: np.ndarray, points: Points
) -> np.ndarray:
    a, b = (points.values(e, axes, places) for e in bodies)
    return np.asarray(a == b)
