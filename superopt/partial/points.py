"""Evaluate a program at some places over a prime field, for random inputs.

Inputs are not materialized: an element is a keyed hash of its position. Only component 0 of an
element is needed; if only sums and products occur, the other is not computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from superopt.partial.bits import Bits, NoBits, bare
from superopt.partial.drawn import whole
from superopt.partial.extremes import OTHER, Sets, capped, extreme, kind
from superopt.partial.indices import computed
from superopt.te import residues
from superopt.te.dtype import INDEX, DType
from superopt.te.expr import Tensor
from superopt.te.field import PrimeField
from superopt.te.fn import function
from superopt.te.keyed import key, mix
from superopt.te.node import Apply, Axis, Const, Expr, Index, Load, Number, Reduce
from superopt.te.walk import parts

AT_ONCE = 1 << 16  # terms of sums, so that arrays of them stay in the cache
MANY = 3  # loads, of which those that are wanted are told apart at each element
DRAWS = 512
DRAW = Axis("draw", DRAWS)  # of inputs, of which places may be at several (`doubles.py`)
MODULUS = residues.P


@dataclass(slots=True)
class Points:
    """Values of expressions. above: see `PrimeField`. components: number of computed components; 1
    where `is_ring_expression` allows it. drawn: inputs that are read more often than they have
    elements. numbers: the constants, if maxima are term sets (`term_sets.py`); alone: see
    `set_kind`. draws: inputs evaluated at once; places then have DRAW_AXIS as the last axis. works:
    by ids of expressions, which are kept alive."""

    seed: int
    above: int | None = None
    components: int = len(residues.MODULI)
    numbers: tuple[Number, ...] | None = None
    alone: str = "max"
    draws: int = 1
    domain: PrimeField = field(init=False)
    drawn: dict[Tensor, np.ndarray] = field(default_factory=dict)
    works: dict[int, tuple[Expr, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.domain = PrimeField(self.seed, above=self.above)

    def values(self, e: Expr, axes: Sequence[Axis], places: np.ndarray) -> np.ndarray:
        """Return component 0 of `e` at places (count, axes)."""
        x = self.elements(e, axes, places)
        return np.asarray(x[0] if e.dtype.is_float else x)

    def elements(self, e: Expr, axes: Sequence[Axis], places: np.ndarray) -> np.ndarray:
        """Return `e` at places (count, axes), for floats all components."""
        count = max(1, AT_ONCE // terms(e))
        lead = (self.components,) if e.dtype.is_float else ()
        out = [np.zeros((*lead, 0), np.int64)] if not len(places) else []
        for k in range(0, len(places), count):
            some = places[k : k + count]
            x = _Run(self, {a: some[:, n] for n, a in enumerate(axes)}, {}).value(e)
            out.append(spread(x, lead, (len(some),)))
        return out[0] if len(out) == 1 else np.concatenate(out, -1)

    def sets(self, of: Sets, e: Expr, axes: Sequence[Axis], places: np.ndarray) -> np.ndarray:
        """Return the terms of a maximum at places, (count, terms)."""
        count = max(1, AT_ONCE // terms(e))
        out = [np.zeros((0, 1), np.int64)]
        for k in range(0, len(places), count):
            some = places[k : k + count]
            x = _Run(self, {a: some[:, n] for n, a in enumerate(axes)}, {}).sets(of, e)
            out.append(np.broadcast_to(x, (len(some), x.shape[-1])))
        return joined(out, 0)

    def work(self, e: Expr) -> float:
        """Return about how many loads an element needs."""
        if id(e) not in self.works:
            self.works[id(e)] = (e, self._work(e))
        return self.works[id(e)][1]

    def _work(self, e: Expr) -> float:
        match e:
            case Load(t, index):
                return 1.0 + (terms(t.body) if t.body is not None else sum(map(self.work, index)))
            case Reduce(_, axes, body):
                return prod(a.size for a in axes) * self.work(body)
            case Apply(_, args):
                return sum(map(self.work, args))
        return 0.0

    def read(self, t: Tensor, where: np.ndarray, draw: np.ndarray | None) -> np.ndarray:
        """Return elements of an input; draw: of which input, if there are several."""
        where = where if draw is None else where * self.draws + draw
        size = self.draws * prod(d for d in t.shape if isinstance(d, int))
        if t not in self.drawn and 0 < size <= where.size:  # 0: of a condition in a sum of nothing
            self.drawn[t] = self.drawing(t, np.arange(size))
        if t in self.drawn:
            return np.take(self.drawn[t], where, -1)
        return self.drawing(t, where)

    def drawing(self, t: Tensor, where: np.ndarray) -> np.ndarray:
        """Draw elements of an input; they depend on nothing but the position."""
        state = mix(where.astype(np.uint64) ^ np.uint64(key(self.seed, t.name)))
        if not t.dtype.is_float:
            return whole(state, t.dtype, self.seed).astype(self.domain.store(t.dtype))
        out = np.empty((self.components, *where.shape), np.int64)
        for n, m in enumerate(map(np.uint64, residues.MODULI[: self.components])):
            out[n] = state - state // m * m  # faster than a remainder
        return out


@dataclass(slots=True)
class _Run:
    """Evaluation at places. Arrays have an axis for the places and one for each open sum; floats
    have a leading axis of components."""

    points: Points
    at: dict[Axis, np.ndarray]
    memo: dict[int, tuple[Expr, np.ndarray]]

    def value(self, e: Expr) -> np.ndarray:
        found = self.memo.get(id(e))
        if found is None:
            found = self.memo[id(e)] = (e, self._value(e))
        return found[1]

    def _value(self, e: Expr) -> np.ndarray:
        domain = self.points.domain
        match e:
            case Axis():
                return self.at[e]
            case Const(v, dtype):
                if dtype == INDEX:
                    return np.asarray(v)
                return self.some(domain.const(v, dtype), dtype)
            case Apply(fn, args, dtype):
                if args[0].dtype == INDEX and fn != "cast":
                    return computed(fn, [self.value(a) for a in args])
                if fn == "select":
                    return self.selected(*args)
                if self.points.numbers is not None and extreme(e):
                    return self.maximum(e)
                some = [self.value(a) for a in args]
                kinds = [a.dtype for a in args]
                if fn == "cast" and kinds[0] == INDEX:
                    return self.some(domain.apply(fn, some, kinds, dtype), dtype)
                return domain.apply(fn, even(some, kinds), kinds, dtype)
            case Load(t, index) if t.body is not None:
                which, axes, places = self.places(t, index)
                return self.points.elements(t.body, axes, places)[..., which]
            case Load(t, index):
                where = np.zeros((), np.int64)
                for i, n in zip(index, t.shape, strict=True):
                    assert isinstance(n, int)
                    where = where * n + np.minimum(np.maximum(self.value(i), 0), n - 1)
                return self.points.read(t, where, self.at.get(DRAW))
            case Reduce(fn, axes, body):
                if self.points.numbers is not None and extreme(e):
                    return self.maximum(e)
                return self.total(fn, axes, body)
            case Index(element, bound):
                return np.asarray(self.value(element) % np.maximum(self.value(bound), 1))
        raise TypeError(f"{type(e).__name__} {e}")

    def some(self, x: np.ndarray, dtype: DType) -> np.ndarray:
        """Return the components that are computed."""
        return x[: self.points.components] if dtype.is_float else x

    def total(self, fn: str, axes: Sequence[Axis], body: Expr) -> np.ndarray:
        run = self.within(axes)
        value = run.value(body)
        lead = value.shape[:1] if body.dtype.is_float else ()
        sizes = [a.size for a in axes]
        value = spread(value, lead, (*self.depth, *sizes), len(sizes))
        over = tuple(range(-len(sizes), 0))
        return self.points.domain.reduce(fn, value, over, body.dtype).squeeze(over)

    @property
    def depth(self) -> tuple[int, ...]:
        """A shape of ones with the rank of the places."""
        return (1,) * max((x.ndim for x in self.at.values()), default=1)

    def within(self, axes: Sequence[Axis]) -> _Run:
        """Open a sum: each of its axes becomes one of the last array axes."""
        count, depth = len(axes), len(self.depth)
        at = {a: x[(..., *(None,) * count)] for a, x in self.at.items()}
        for n, a in enumerate(axes):
            shape = (*(1,) * (depth + n), -1, *(1,) * (count - n - 1))
            at[a] = np.arange(a.size).reshape(shape)
        return _Run(self.points, at, {})

    def places(
        self, t: Tensor, index: Sequence[Expr]
    ) -> tuple[np.ndarray, tuple[Axis, ...], np.ndarray]:
        """Return the indices into the unique elements that are read, their axes, and the elements'
        places (count, axes)."""
        draw = (DRAW,) * (DRAW in self.at)
        axes = (*t.axes, *draw)
        shape = [a.size for a in axes]
        where = np.zeros(self.depth, np.int64)
        for i, n in zip((*index, *draw), shape, strict=True):
            where = np.asarray(where * n + self.value(i))
        if prod(shape) <= 8 * where.size:
            there = np.zeros(prod(shape), bool)
            there[where] = True
            some = np.flatnonzero(there)
            which = (np.cumsum(there) - 1)[where]
        else:
            some, which = np.unique(where, return_inverse=True)
            which = which.reshape(where.shape)
        places = np.unravel_index(some, shape) if shape else ()
        none = np.zeros((len(some), 0), np.int64)
        return which, axes, np.stack(places, -1) if shape else none

    def selected(self, guard: Expr, yes: Expr, no: Expr) -> np.ndarray:
        """Select; only the wanted branch is computed where that saves much."""
        told = self.value(guard)
        if told.dtype != np.bool_:  # a condition that may be any (`free.py`)
            kinds = [guard.dtype, yes.dtype, no.dtype]
            some = even([told, self.value(yes), self.value(no)], kinds)
            return self.points.domain.apply("select", some, kinds, yes.dtype)
        if told.all():
            return self.value(yes)
        if not told.any():
            return self.value(no)
        share = float(told.mean())
        along = [d for d, n in enumerate(told.shape) if n > 1]
        works = self.points.work(yes), self.points.work(no)
        wasted = (1 - share) * works[0] + share * works[1]
        worth = min(works) >= 1 or wasted > max(works) / 2
        if worth and (len(along) == 1 or sum(works) >= MANY):
            return self.apart(told, along, yes, no)
        some = even([told, self.value(yes), self.value(no)], [None, yes.dtype, no.dtype])
        return np.where(some[0], some[1], some[2])

    def apart(self, told: np.ndarray, along: Sequence[int], yes: Expr, no: Expr) -> np.ndarray:
        """Compute each branch where it is wanted: along the one array axis that matters, or at
        single elements."""
        shape = np.broadcast_shapes(told.shape, *(x.shape for x in self.at.values()))
        lead = (self.points.components,) if yes.dtype.is_float else ()
        out: np.ndarray | None = None
        for e, here in ((yes, told), (no, ~told)):
            if len(along) == 1:
                (axis,) = along
                some = np.flatnonzero(here)
                where: tuple[Any, ...] = (..., some, *(slice(None),) * (len(shape) - axis - 1))
                at = {a: x[where] if x.shape[axis] > 1 else x for a, x in self.at.items()}
                size = (*shape[:axis], len(some), *shape[axis + 1 :])
            else:
                here = np.broadcast_to(here, shape)
                where = (..., here)
                at = {a: np.broadcast_to(x, shape)[here] for a, x in self.at.items()}
                size = (np.count_nonzero(here),)
            x = spread(_Run(self.points, at, {}).value(e), lead, size)
            out = np.empty((*lead, *shape), x.dtype) if out is None else out
            out[where] = x
        assert out is not None
        return out

    def maximum(self, e: Expr) -> np.ndarray:
        assert self.points.numbers is not None
        given = kind(e, self.points.alone), self.points.numbers, self.points.domain
        for of in (Bits(*given), Sets(*given)) if bare(e) else (Sets(*given),):
            with suppress(NoBits):
                return of.value(self.sets(of, e), e)
        raise AssertionError

    def sets(self, of: Sets, e: Expr) -> np.ndarray:
        """Return the terms of a maximum, (..., terms)."""
        match e:
            case Reduce(fn, axes, body) if fn == of.fn:
                x = self.within(axes).sets(of, body)
                sizes = [a.size for a in axes]
                x = spread(x, (), (*self.depth, *sizes, 1), len(sizes) + 1)
                count = prod(x.shape[-len(sizes) - 1 :])
                return of.united(x.reshape(*x.shape[: -len(sizes) - 1], count))
            case Apply(fn, args) if fn == of.fn:
                return of.united(joined([self.sets(of, x) for x in args], -1))
            case Apply(fn) if fn == OTHER[of.fn] and (found := capped(e)):
                return of.least(self.sets(of, found[0]), found[1])
            case Apply("select", (guard, yes, no)):
                told = self.value(guard)
                if told.all() or not told.any():
                    return self.sets(of, yes if told.all() else no)
                a, b = (self.sets(of, x) for x in (yes, no))
                most = max(a.shape[-1], b.shape[-1])
                return np.where(told[..., None], filled(a, most), filled(b, most))
            case Load(t, index) if t.body is not None:
                which, axes, places = self.places(t, index)
                return np.asarray(self.points.sets(of, t.body, axes, places)[which])
        return of.term(self.value(e), e)


def spread(
    x: np.ndarray, lead: tuple[int, ...], shape: tuple[int, ...], last: int | None = None
) -> np.ndarray:
    """Broadcast behind `lead` to the rank of `shape`; the last axes (default: all) get its
    sizes."""
    own = x.shape[len(lead) :]
    own = (*(1,) * (len(shape) - len(own)), *own)
    last = len(shape) if last is None else last
    whole = (
        *own[: len(own) - last],
        *np.broadcast_shapes(own[len(own) - last :], shape[len(shape) - last :]),
    )
    return np.broadcast_to(x.reshape((*lead, *own)), (*lead, *whole))


def filled(x: np.ndarray, size: int) -> np.ndarray:
    """Pad sets (..., n) with leading zeros to a size."""
    more = size - x.shape[-1]
    return np.pad(x, ((0, 0),) * (x.ndim - 1) + ((more, 0),)) if more else x


def joined(some: Sequence[np.ndarray], axis: int) -> np.ndarray:
    """Concatenate sets of several sizes: along axis 0, or as unions along the last axis."""
    if axis:
        shape = np.broadcast_shapes(*(x.shape[:-1] for x in some))
        return np.concatenate([np.broadcast_to(x, (*shape, x.shape[-1])) for x in some], axis)
    most = max(x.shape[-1] for x in some)
    return np.concatenate([filled(x, most) for x in some], axis)


def even(some: Sequence[np.ndarray], kinds: Sequence[object]) -> list[np.ndarray]:
    """Give arrays the same rank behind the components of floats."""
    leads = [int(getattr(k, "is_float", False)) for k in kinds]
    most = max(x.ndim - n for x, n in zip(some, leads, strict=True))
    return [
        x.reshape((*x.shape[:n], *(1,) * (most - x.ndim + n), *x.shape[n:]))
        for x, n in zip(some, leads, strict=True)
    ]


def ring(e: Expr) -> bool:
    """True if an expression has only sums and products, for which component 0 suffices."""
    return all(map(_plain, parts(e)))


def _plain(e: Expr) -> bool:
    match e:
        case Reduce(fn):
            return fn == "sum"
        case Load(t):
            return t.dtype.is_float
        case Apply("cast", (x,)):
            return x.dtype == INDEX
        case Apply(fn, args) if e.dtype.is_float:
            return fn == "select" or function(fn).field == "ring"
        case Apply(_, args):
            return not any(a.dtype.is_float for a in args)
    return not isinstance(e, Index)


def terms(e: Expr) -> int:
    """Return the number of terms of the longest nested sum or maximum, at least 1."""
    match e:
        case Reduce(_, axes, body):
            return max(1, prod(a.size for a in axes)) * terms(body)
        case Apply(_, args):
            return max(map(terms, args))
        case Load(_, index):
            return max(map(terms, index), default=1)
    return 1
