"""On which elements two programs are equal: boxes, found by few elements in each.

Programs are compared cell by cell (`cells.py`), at m + 1 elements of each of m axes and some more,
on random inputs over a prime field (PET, section 5.2). What is found so is a claim about the cells,
which `claims.py` says and the verifier proves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod

import numpy as np

from superopt.ir import graph as g
from superopt.partial.boxes import Box, joined, mask, singles, volume
from superopt.partial.cells import cells
from superopt.partial.composed import Composed
from superopt.partial.points import MODULUS, Points, terms
from superopt.te.affine import rebuild
from superopt.te.expr import Tensor, compute
from superopt.te.fn import function
from superopt.te.inline import placed
from superopt.te.node import Apply, Axis, Const, Expr, Index, Load, Reduce
from superopt.te.walk import axes_of, parts, reductions

INPUTS = 2  # that are tried
ORDERED = 64  # where maxima are taken, which may be equal though their terms are not, at least
PEAKS = 8  # for each term of the longest maximum, so that each is the largest in some
MOST_ORDERED = 512
EVERY = 4096  # elements of a result of which each is compared
LATER = 1 << 17  # terms of sums that are computed to compare each element of cells that differ
ABOVE = (None, 0, 16, 1)  # sixteenths of the numbers that are above 0; any
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


def regions(a: g.Value, b: g.Value) -> Regions:
    """Where a == b, whatever both are given. They must have the same type, of sizes that are
    numbers; constants may be anything. Raises ValueError for other types, InferError where an
    operator has no tensor expression, TooMany where the index maps break too often."""
    both = Composed()
    return of_tensors(both.tensor(a), both.tensor(b))


def of_tensors(a: Tensor, b: Tensor) -> Regions:
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
    equal, different, count, exact = _compared(a.axes, bodies, found)
    degree = max(_degree(a.body), _degree(b.body))
    chance = None if _ordered(bodies) else Fraction(degree, MODULUS) ** INPUTS
    return Regions(shape, joined(equal, shape), joined(different, shape), count, chance, exact)


def _computed(t: Tensor) -> Tensor:
    return t if t.body is not None else compute(t.shape, lambda *i: t[i])


def _compared(
    axes: Sequence[Axis], bodies: Sequence[Expr], found: Sequence[Box]
) -> tuple[list[Box], list[Box], int, bool]:
    """The boxes that are equal, those that are not, how many elements were compared, and whether
    none of what is not equal is: see `Regions.exact`."""
    rng = np.random.default_rng(0)
    short = shortened(bodies)
    small = sum(volume(c) for c in found) <= EVERY
    some = [_all(c) if small else _elements(c, rng) for c in found]
    same, count = _alike(axes, short, some)
    left = max(EVERY, LATER // sum(map(terms, short)))
    equal: list[Box] = []
    different: list[Box] = []
    apart: list[Box] = []
    exact = True
    told = list(zip(found, same, strict=True))
    told.sort(key=lambda x: (not x[1].any(), volume(x[0])))  # what is equal at some comes first
    for c, s in told:
        if s.all():
            equal.append(c)
        elif small and not s.any():
            different.append(c)
        elif volume(c) <= left:
            left -= volume(c)
            apart.append(c)
        else:
            different.append(c)
            exact = False
    each, more = _alike(axes, short, [_all(b) for b in apart])
    for b, s in zip(apart, each, strict=True):
        if s.any():
            equal += [x for x, y in zip(singles(b), s, strict=True) if y]
            different += [x for x, y in zip(singles(b), s, strict=True) if not y]
        else:
            different.append(b)
    return equal, different, count + more, exact


def _alike(
    axes: Sequence[Axis], bodies: Sequence[Expr], some: Sequence[np.ndarray]
) -> tuple[list[np.ndarray], int]:
    """Which elements are equal, of several lists of these; and their number."""
    if not some:
        return [], 0
    places = np.concatenate(some)
    same = np.ones(len(places), bool)
    for points in _inputs(bodies):
        there = np.flatnonzero(same)
        left, right = (points.values(e, axes, places[there]) for e in bodies)
        same[there] = left == right
    return np.split(same, np.cumsum([len(s) for s in some])[:-1]), len(places)


def _inputs(bodies: Sequence[Expr]) -> Iterator[Points]:
    """What is given. Where maxima are taken, numbers of any order, and some that are all below 0,
    all above it, or nearly all below: what a border of zeros does is told by these."""
    if not _ordered(bodies):
        yield from map(Points, range(INPUTS))
        return
    most = max(map(_peaks, bodies))
    for seed in range(min(max(ORDERED, PEAKS * most), MOST_ORDERED)):
        yield Points(seed, above=ABOVE[seed % len(ABOVE)])


def _all(box: Box) -> np.ndarray:
    """Its elements, in the order of `singles`."""
    grid = np.meshgrid(*(np.array(s.indices(), np.int64) for s in box), indexing="ij")
    return np.stack(grid, -1).reshape(-1, len(box)) if box else np.zeros((1, 0), np.int64)


def _elements(box: Box, rng: np.random.Generator) -> np.ndarray:
    """The first element of a box, its neighbours along each axis, and some at random."""
    counts = [s.count for s in box]
    first = (0,) * len(box)
    at = {first, tuple(n - 1 for n in counts)}
    at.update((*first[:d], 1, *first[d + 1 :]) for d, n in enumerate(counts) if n > 1)
    at.update(map(tuple, rng.integers(0, counts, (MORE, len(box))).tolist()))
    begins, steps = (np.array([getattr(s, k) for s in box], np.int64) for k in ("begin", "step"))
    return np.asarray(begins + np.array(sorted(at), np.int64).reshape(len(at), -1) * steps)


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
            return prod(map(_size, axes) if fn in ("max", "min") else ()) * _peaks(body)
        case Apply(_, args):
            return max(map(_peaks, args))
        case Load(_, index):
            return max(map(_peaks, index), default=1)
    return 1


def _degree(e: Expr) -> int:
    """Of an element as a polynomial in what is given; a function counts as one more thing given."""
    match e:
        case Load():
            return 1
        case Reduce(_, _, body):
            return _degree(body)
        case Apply("mul", args):
            return sum(map(_degree, args))
        case Apply(_, args):
            return max(map(_degree, args))
    return 0


FEW = 2


def shortened(bodies: Sequence[Expr]) -> list[Expr]:
    """Sums over long axes (channels) as sums over few of their places, where these are all alike:
    such an axis is only read by, as an index of its own, and where it is read by nothing else is.
    Then the terms of one place are of other variables than those of another, and what is equal for
    few places is equal for all: as many as the factors of a product, of which each may read another
    one. What reads nothing of the axis counts its places, and would be less of fewer."""
    fine: dict[int, bool] = {}
    for r in (r for body in bodies for r in reductions(body)):
        for a in r.axes:
            n = _size(a)
            alike = r.fn == "sum" and _only_read(r.body, a) and _nothing_but(r.body, a)
            fine[n] = fine.get(n, True) and alike
    places: dict[tuple[Tensor, int], set[int | None]] = {}
    for e in (e for body in bodies for e in parts(body) if isinstance(e, Load)):
        for d, i in enumerate(e.index):
            own = _size(i) if isinstance(i, Axis) and i.name.startswith("k") else None
            places.setdefault((e.tensor, d), set()).add(own)
    for some in places.values():
        if len(some) > 1:
            fine.update((n, False) for n in some if n is not None)
    least = max(FEW, *map(_degree, bodies))
    few = {n for n, yes in fine.items() if yes and n > least}
    return [_with_few(b, few, least) for b in bodies] if few else list(bodies)


def _size(a: Axis) -> int:
    assert isinstance(a.extent, int)
    return a.extent


def _only_read(e: Expr, a: Axis) -> bool:
    """Does `a` occur only as an index of what is read?"""
    match e:
        case Axis():
            return e != a
        case Load(_, index):
            return all(i == a or a not in axes_of(i) for i in index)
        case Apply(_, args):
            return all(_only_read(x, a) for x in args)
        case Reduce(_, _, body):
            return _only_read(body, a)
        case Index(element, bound):
            return _only_read(element, a) and _only_read(bound, a)
    return True


def _nothing_but(e: Expr, a: Axis) -> bool:
    """Is `e` 0 where all that is read at a place of `a` is? What a function has of it counts as one
    more thing that is read there."""
    match e:
        case Const(value):
            return value == 0
        case Load(_, index):
            return a in index
        case Reduce(_, _, body):
            return _nothing_but(body, a)
        case Apply("add" | "sub" | "neg", args):
            return all(_nothing_but(x, a) for x in args)
        case Apply("select", (_, *args)):
            return all(_nothing_but(x, a) for x in args)
        case Apply("div", (above, _)):
            return _nothing_but(above, a)
        case Apply("mul", args):
            return any(_nothing_but(x, a) for x in args)
        case Apply(_, args):
            return any(a in axes_of(x) for x in args)
    return False


def _with_few(e: Expr, few: Collection[int], least: int) -> Expr:
    match e:
        case Axis(name, int() as n):
            return Axis(name, least) if n in few and name.startswith("k") else e
        case Reduce(fn, axes, body, dtype):
            some = tuple(_with_few(a, few, least) for a in axes)
            return Reduce(fn, some, _with_few(body, few, least), dtype)  # type: ignore[arg-type]
        case Apply(fn, args, dtype):
            return rebuild(fn, tuple(_with_few(a, few, least) for a in args), dtype)
        case Load(t, index, dtype):
            return Load(t, tuple(_with_few(i, few, least) for i in index), dtype)
        case Index(element, bound):
            return Index(_with_few(element, few, least), _with_few(bound, few, least))
    return e
