"""On which elements two programs are equal: boxes, found by few elements in each.

Programs are compared cell by cell (`cells.py`), at m + 1 elements of each of m axes and some more,
on random inputs over a prime field (PET, section 5.2). What is found so is a claim about the cells,
which `claims.py` says and the verifier proves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain, islice
from math import prod

import numpy as np

from superopt.ir import graph as g
from superopt.partial.boxes import Box, joined, mask, singles, volume
from superopt.partial.cells import cells
from superopt.partial.composed import Composed
from superopt.partial.extremes import alone, by_terms, decided, kinds, numbers_of
from superopt.partial.fewer import degree, shortened, size_of, thinned
from superopt.partial.points import MODULUS, Points, ring, terms
from superopt.partial.shared import shared
from superopt.partial.translated import translated
from superopt.te.expr import Tensor, compute
from superopt.te.fn import function
from superopt.te.inline import placed
from superopt.te.node import Apply, Axis, Expr, Load, Number, Reduce
from superopt.te.walk import parts

INPUTS = 2  # that are tried
ORDERED = 64  # where maxima are taken, which may be equal though their terms are not, at least
PEAKS = 8  # for each term of the longest maximum, so that each is the largest in some
MOST_ORDERED = 512
EVERY = 4096  # elements of a result of which each is compared
LATER = 1 << 17  # terms of sums that are computed to compare each element of cells that differ
ABOVE = (0, None, 16, 1)  # sixteenths of the numbers that are above 0; any
MORE = 3  # elements of a cell beside its first and those next to it


@dataclass(frozen=True, slots=True)
class Regions:
    """equal, different: boxes that do not overlap, and all of the shape. elements: how many were
    compared. chance: that one of them is equal by chance, at most (Schwartz and Zippel): the degree
    by the modulus, for each of the inputs; None where maxima are taken, of which less is known.

    exact: no element of `different` is equal. Index maps may meet on less than a box (a transpose
    leaves the diagonal as it is), which is found by comparing each element, of a result that is not
    too large for that. Else `different` may hold elements that are equal, and that are recomputed
    with the others; `equal` holds none that differs."""

    shape: tuple[int, ...]
    equal: tuple[Box, ...]
    different: tuple[Box, ...]
    elements: int
    chance: Fraction | None
    exact: bool = True

    @property
    def share(self) -> float:
        """Of the elements that are equal."""
        total = sum(map(volume, self.equal)) + sum(map(volume, self.different))
        return sum(map(volume, self.equal)) / total if total else 1.0

    def mask(self) -> np.ndarray:
        return mask(self.equal, self.shape)


def regions(a: g.Value, b: g.Value, every: int = EVERY) -> Regions:
    """Where a == b, whatever both are given. They must have the same type, of sizes that are
    numbers; constants may be anything. every: elements of a result of which each is compared.
    Raises ValueError for other types, InferError where an operator has no tensor expression,
    TooMany where the index maps break too often."""
    both = Composed()
    return of_tensors(both.tensor(a), both.tensor(b), every)


def of_tensors(a: Tensor, b: Tensor, every: int = EVERY) -> Regions:
    """As above, of tensors that read inputs only."""
    if a.type != b.type:
        raise ValueError(f"{a.type} and {b.type}")
    shape = tuple(d for d in a.shape if isinstance(d, int))
    if len(shape) < a.rank:
        raise ValueError(f"{a.type} has symbolic sizes")
    a, b = _computed(a), _computed(b)
    assert a.body is not None
    assert b.body is not None
    bodies = [a.body, placed(b.body, dict(zip(b.axes, a.axes, strict=True)))]
    found = cells(a.axes, bodies)
    equal, different, count, exact = _compared(a.axes, bodies, found, every)
    most = max(degree(a.body), degree(b.body))
    chance = None if _ordered(bodies) else Fraction(most, MODULUS) ** INPUTS
    return Regions(shape, joined(equal, shape), joined(different, shape), count, chance, exact)


def _computed(t: Tensor) -> Tensor:
    return t if t.body is not None else compute(t.shape, lambda *i: t[i])


def _compared(
    axes: Sequence[Axis], bodies: Sequence[Expr], found: Sequence[Box], most: int
) -> tuple[list[Box], list[Box], int, bool]:
    """The boxes that are equal, those that are not, how many elements were compared, and whether
    none of what is not equal is: see `Regions.exact`."""
    if not found:
        return [], [], 0, True
    short, rank = shortened(bodies), len(axes)
    one = _translated(axes, short, found).tolist()
    alike = [c for c, yes in zip(found, one, strict=True) if yes]
    others = [c for c, yes in zip(found, one, strict=True) if not yes]
    small = sum(map(volume, others)) <= most
    few, first = _elements(alike, rank, few=True)
    many, behind = _all(others, rank) if small else _elements(others, rank)
    places, begins = np.concatenate((few, many)), np.concatenate((first, behind + len(few)))
    found = [*alike, *others]
    sizes = [volume(c) for c in found]
    same, doubtful = _alike(axes, short, places)
    every, some = (f.reduceat(same, begins).tolist() for f in (_AND, _OR))
    left = max(most, LATER // sum(map(terms, short)))
    equal: list[Box] = []
    different: list[Box] = []
    apart: list[Box] = []
    exact = not doubtful.any()
    for n in sorted(range(len(found)), key=lambda n: (not some[n], sizes[n])):  # equal ones first
        if every[n]:
            equal.append(found[n])
        elif (small or n < len(alike)) and not some[n]:
            different.append(found[n])
        elif sizes[n] <= left:
            left -= sizes[n]
            apart.append(found[n])
        else:
            different.append(found[n])
            exact = False
    more, begins = _all(apart, rank)
    same, doubtful = _alike(axes, short, more)
    each = np.split(same, begins[1:]) if apart else []
    for box, own in zip(apart, each, strict=True):
        if own.any():
            told = list(zip(singles(box), own.tolist(), strict=True))
            equal += [x for x, yes in told if yes]
            different += [x for x, yes in told if not yes]
        else:
            different.append(box)
    return equal, different, len(places) + len(more), exact and not doubtful.any()


_AND, _OR = np.logical_and, np.logical_or


def _alike(
    axes: Sequence[Axis], bodies: Sequence[Expr], places: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """At which places they are equal, and at which of the others it is not known that they are not.

    Of maxima the sets of terms are compared, and where these differ they are taken to do, too;
    inputs say where it is so, if it need not be. Maxima and minima together are equal in more ways,
    so that all inputs are asked there."""
    same = np.zeros(len(places), bool)
    if not len(places):
        return same, same
    own = shared(bodies)
    if _ordered(bodies) and by_terms(bodies):
        same = _of_same_terms(axes, own, places, numbers_of(bodies), alone(bodies))
        if decided(bodies):
            return same, np.zeros_like(same)
    left = np.flatnonzero(~same)
    if not len(left):
        return same, np.zeros_like(same)
    sure = len(kinds(bodies)) > 1 or not (_ordered(bodies) and by_terms(bodies))
    agree = _agree(axes, bodies, own, places[left], None if sure else ORDERED)
    doubtful = np.zeros_like(same)
    (same if sure else doubtful)[left[agree]] = True
    return same, doubtful


def _agree(
    axes: Sequence[Axis],
    bodies: Sequence[Expr],
    own: Sequence[Expr],
    places: np.ndarray,
    most: int | None,
) -> np.ndarray:
    """At which places no input (of so many at most) tells a difference. Sums over the ends of
    windows are compared first, on one input: where these differ, as they do at most places of boxes
    that differ, no more is asked."""
    same = np.ones(len(places), bool)
    ends = thinned(bodies)
    fewer = 2 * sum(map(terms, ends)) <= sum(map(terms, bodies))
    tried = ((shared(ends), points) for points in islice(_inputs(ends), int(fewer)))
    left = np.arange(len(places))  # where it is not known yet
    for some, points in chain(tried, ((own, p) for p in islice(_inputs(bodies), most))):
        if not len(left):
            break
        same[left] = _equal(axes, some, places[left], points)
        left = left[same[left]]
    return same


def _equal(
    axes: Sequence[Axis], bodies: Sequence[Expr], places: np.ndarray, points: Points
) -> np.ndarray:
    a, b = (points.values(e, axes, places) for e in bodies)
    return np.asarray(a == b)


def _of_same_terms(
    axes: Sequence[Axis],
    bodies: Sequence[Expr],
    places: np.ndarray,
    numbers: tuple[Number, ...],
    caps: str = "max",
) -> np.ndarray:
    """At which places they are of the same maxima, whatever the order of numbers. caps: see
    `extremes.alone`."""
    same = np.ones(len(places), bool)
    for seed in range(INPUTS):
        there = np.flatnonzero(same)
        same[there] = _equal(axes, bodies, places[there], Points(seed, numbers=numbers, alone=caps))
    return same


def _inputs(bodies: Sequence[Expr]) -> Iterator[Points]:
    """What is given. Where maxima are taken, numbers of any order, and some that are all below 0,
    all above it, or nearly all below: what a border of zeros does is told by these."""
    if not _ordered(bodies):
        components = 1 if all(map(ring, bodies)) else 2
        yield from (Points(seed, components=components) for seed in range(INPUTS))
        return
    most = max(map(_peaks, bodies))
    for seed in range(min(max(ORDERED, PEAKS * most), MOST_ORDERED)):
        yield Points(seed, above=ABOVE[seed % len(ABOVE)])


def _spans(boxes: Sequence[Box], rank: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where boxes begin, their steps and their counts: (boxes, axes) each."""
    told = np.array([(s.begin, s.step, s.count) for b in boxes for s in b], np.int64)
    begins, steps, counts = told.reshape(-1, 3).T.reshape(3, len(boxes), rank)
    return begins, steps, counts


def _all(boxes: Sequence[Box], rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Their elements, (count, axes), of each in the order of `singles`; and where those of each box
    begin."""
    begins, steps, counts = _spans(boxes, rank)
    sizes = counts.prod(1)
    first = np.cumsum(sizes) - sizes
    box = np.repeat(np.arange(len(boxes)), sizes)
    left = np.arange(len(box)) - first[box]
    out = np.empty((len(box), counts.shape[1]), np.int64)
    for d in reversed(range(counts.shape[1])):
        left, out[:, d] = np.divmod(left, counts[box, d])
    return out * steps[box] + begins[box], first


def _translated(axes: Sequence[Axis], bodies: Sequence[Expr], boxes: Sequence[Box]) -> np.ndarray:
    begins, steps, counts = _spans(boxes, len(axes))
    return translated(axes, bodies, begins, np.where(counts > 1, steps, 0))


def _elements(boxes: Sequence[Box], rank: int, few: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Likewise the first element of each box, its neighbours along each axis, the last one, and
    some at random, each once; or the first and the last."""
    begins, steps, counts = _spans(boxes, rank)
    number = len(boxes)
    most = counts[:, None, :] - 1
    near = np.minimum(np.eye(rank + 1, rank, k=-1, dtype=np.int64), most)
    drawn = np.random.default_rng(0).random((number, MORE, rank))
    at = np.concatenate((near, most, (drawn * counts[:, None, :]).astype(np.int64)), 1)
    at = at[:, :: rank + 1][:, :2] if few else at
    box = np.repeat(np.arange(number), at.shape[1])
    at = at.reshape(-1, rank)
    places = begins[box] + at * steps[box]
    once = np.unique(np.column_stack((box, places)), axis=0)
    return once[:, 1:], np.searchsorted(once[:, 0], np.arange(number))


def _ordered(bodies: Iterable[Expr]) -> bool:
    """Is anything compared, or the largest of something taken?"""
    return any(
        (isinstance(e, Reduce) and e.fn in ("max", "min"))
        or (isinstance(e, Apply) and e.args[0].dtype.is_float and function(e.fn).field == "order")
        for body in bodies
        for e in parts(body)
    )


def _peaks(e: Expr) -> int:
    """Terms of the longest maximum in a maximum."""
    match e:
        case Reduce(fn, axes, body):
            return prod(map(size_of, axes) if fn in ("max", "min") else ()) * _peaks(body)
        case Apply("max" | "min", args):
            return sum(map(_peaks, args))
        case Apply(_, args):
            return max(map(_peaks, args))
        case Load(_, index):
            return max(map(_peaks, index), default=1)
    return 1
