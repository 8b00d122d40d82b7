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

from superopt.partial.regions.bit_sets import BitSets, TooManyTerms, is_pure_extremum
from superopt.partial.regions.index_functions import apply_index_function
from superopt.partial.regions.random_integers import random_integers
from superopt.partial.regions.term_sets import OPPOSITE, TermSets, cap_of, extremum_kind, set_kind
from superopt.te.analysis.walk import subexpressions
from superopt.te.eval import residues
from superopt.te.eval.keyed_hash import keyed_hash, mix
from superopt.te.eval.prime_field import PrimeField
from superopt.te.expr.dtype import INDEX, DType
from superopt.te.expr.functions import scalar_function
from superopt.te.expr.node import Apply, Axis, Const, Expr, Index, Load, Number, Reduce
from superopt.te.expr.tensor import Tensor

MAX_BATCH_TERMS = 1 << 16  # terms of sums, so that arrays of them stay in the cache
MIN_SEPARATE_LOADS = 3  # loads; of these, the wanted ones are identified at each element
MAX_DRAWS = 512
DRAW_AXIS = Axis(
    "draw", MAX_DRAWS
)  # of inputs, of which places may be at several (`float_points.py`)
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
    lone_cap_kind: str = "max"
    draws: int = 1
    domain: PrimeField = field(init=False)
    whole_inputs: dict[Tensor, np.ndarray] = field(default_factory=dict)
    works: dict[int, tuple[Expr, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.domain = PrimeField(self.seed, sixteenths_above=self.above)

    def values(self, e: Expr, axes: Sequence[Axis], places: np.ndarray) -> np.ndarray:
        """Return component 0 of `e` at places (count, axes)."""
        x = self.elements(e, axes, places)
        return np.asarray(x[0] if e.dtype.is_float else x)

    def elements(self, e: Expr, axes: Sequence[Axis], places: np.ndarray) -> np.ndarray:
        """Return `e` at places (count, axes), for floats all components."""
        count = max(1, MAX_BATCH_TERMS // term_count(e))
        lead = (self.components,) if e.dtype.is_float else ()
        out = [np.zeros((*lead, 0), np.int64)] if not len(places) else []
        for k in range(0, len(places), count):
            some = places[k : k + count]
            x = _Run(self, {a: some[:, n] for n, a in enumerate(axes)}, {}).value(e)
            out.append(broadcast_behind(x, lead, (len(some),)))
        return out[0] if len(out) == 1 else np.concatenate(out, -1)

    def term_sets(
        self, of: TermSets, e: Expr, axes: Sequence[Axis], places: np.ndarray
    ) -> np.ndarray:
        """Return the terms of a maximum at places, (count, terms)."""
        count = max(1, MAX_BATCH_TERMS // term_count(e))
        out = [np.zeros((0, 1), np.int64)]
        for k in range(0, len(places), count):
            some = places[k : k + count]
            x = _Run(self, {a: some[:, n] for n, a in enumerate(axes)}, {}).term_sets(of, e)
            out.append(np.broadcast_to(x, (len(some), x.shape[-1])))
        return concat_sets(out, 0)

    def work(self, e: Expr) -> float:
        """Return about how many loads an element needs."""
        if id(e) not in self.works:
            self.works[id(e)] = (e, self._work(e))
        return self.works[id(e)][1]

    def _work(self, e: Expr) -> float:
        match e:
            case Load(t, index):
                return 1.0 + (
                    term_count(t.body) if t.body is not None else sum(map(self.work, index))
                )
            case Reduce(_, axes, body):
                return prod(a.size for a in axes) * self.work(body)
            case Apply(_, args):
                return sum(map(self.work, args))
        return 0.0

    def read(self, t: Tensor, where: np.ndarray, draw: np.ndarray | None) -> np.ndarray:
        """Return elements of an input; draw: of which input, if there are several."""
        where = where if draw is None else where * self.draws + draw
        size = self.draws * prod(d for d in t.shape if isinstance(d, int))
        if (
            t not in self.whole_inputs and 0 < size <= where.size
        ):  # 0: of a condition in a sum of nothing
            self.whole_inputs[t] = self.draw_elements(t, np.arange(size))
        if t in self.whole_inputs:
            return np.take(self.whole_inputs[t], where, -1)
        return self.draw_elements(t, where)

    def draw_elements(self, t: Tensor, where: np.ndarray) -> np.ndarray:
        """Draw elements of an input; they depend on nothing but the position."""
        state = mix(where.astype(np.uint64) ^ np.uint64(keyed_hash(self.seed, t.name)))
        if not t.dtype.is_float:
            return random_integers(state, t.dtype, self.seed).astype(
                self.domain.storage_dtype(t.dtype)
            )
        out = np.empty((self.components, *where.shape), np.int64)
        for n, m in enumerate(map(np.uint64, residues.MODULI[: self.components])):
            out[n] = state - state // m * m  # faster than a remainder
        return out


@dataclass(slots=True)
class _Run:
    """Evaluation at places. Arrays have an axis for the places and one for each open sum; floats
    have a leading axis of components."""

    points: Points
    axis_values: dict[Axis, np.ndarray]
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
                return self.axis_values[e]
            case Const(v, dtype):
                if dtype == INDEX:
                    return np.asarray(v)
                return self.computed_components(domain.const(v, dtype), dtype)
            case Apply(fn, args, dtype):
                if args[0].dtype == INDEX and fn != "cast":
                    return apply_index_function(fn, [self.value(a) for a in args])
                if fn == "select":
                    return self.select(*args)
                if self.points.numbers is not None and extremum_kind(e):
                    return self.extremum(e)
                some = [self.value(a) for a in args]
                kinds = [a.dtype for a in args]
                if fn == "cast" and kinds[0] == INDEX:
                    return self.computed_components(domain.apply(fn, some, kinds, dtype), dtype)
                return domain.apply(fn, align_ranks(some, kinds), kinds, dtype)
            case Load(t, index) if t.body is not None:
                which, axes, places = self.unique_places(t, index)
                return self.points.elements(t.body, axes, places)[..., which]
            case Load(t, index):
                where = np.zeros((), np.int64)
                for i, n in zip(index, t.shape, strict=True):
                    assert isinstance(n, int)
                    where = where * n + np.minimum(np.maximum(self.value(i), 0), n - 1)
                return self.points.read(t, where, self.axis_values.get(DRAW_AXIS))
            case Reduce(fn, axes, body):
                if self.points.numbers is not None and extremum_kind(e):
                    return self.extremum(e)
                return self.reduce(fn, axes, body)
            case Index(element, bound):
                return np.asarray(self.value(element) % np.maximum(self.value(bound), 1))
        raise TypeError(f"{type(e).__name__} {e}")

    def computed_components(self, x: np.ndarray, dtype: DType) -> np.ndarray:
        """Return the components that are computed."""
        return x[: self.points.components] if dtype.is_float else x

    def reduce(self, fn: str, axes: Sequence[Axis], body: Expr) -> np.ndarray:
        run = self.open_sum(axes)
        value = run.value(body)
        lead = value.shape[:1] if body.dtype.is_float else ()
        sizes = [a.size for a in axes]
        value = broadcast_behind(value, lead, (*self.depth, *sizes), len(sizes))
        over = tuple(range(-len(sizes), 0))
        return self.points.domain.reduce(fn, value, over, body.dtype).squeeze(over)

    @property
    def depth(self) -> tuple[int, ...]:
        """A shape of ones with the rank of the places."""
        return (1,) * max((x.ndim for x in self.axis_values.values()), default=1)

    def open_sum(self, axes: Sequence[Axis]) -> _Run:
        """Open a sum: each of its axes becomes one of the last array axes."""
        count, depth = len(axes), len(self.depth)
        at = {a: x[(..., *(None,) * count)] for a, x in self.axis_values.items()}
        for n, a in enumerate(axes):
            shape = (*(1,) * (depth + n), -1, *(1,) * (count - n - 1))
            at[a] = np.arange(a.size).reshape(shape)
        return _Run(self.points, at, {})

    def unique_places(
        self, t: Tensor, index: Sequence[Expr]
    ) -> tuple[np.ndarray, tuple[Axis, ...], np.ndarray]:
        """Return the indices into the unique elements that are read, their axes, and the elements'
        places (count, axes)."""
        draw = (DRAW_AXIS,) * (DRAW_AXIS in self.axis_values)
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

    def select(self, guard: Expr, yes: Expr, no: Expr) -> np.ndarray:
        """Select; only the wanted branch is computed where that saves much."""
        told = self.value(guard)
        if told.dtype != np.bool_:  # a condition that may be any (`uninterpreted.py`)
            kinds = [guard.dtype, yes.dtype, no.dtype]
            some = align_ranks([told, self.value(yes), self.value(no)], kinds)
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
        if worth and (len(along) == 1 or sum(works) >= MIN_SEPARATE_LOADS):
            return self.select_separately(told, along, yes, no)
        some = align_ranks([told, self.value(yes), self.value(no)], [None, yes.dtype, no.dtype])
        return np.where(some[0], some[1], some[2])

    def select_separately(
        self, condition: np.ndarray, along: Sequence[int], yes: Expr, no: Expr
    ) -> np.ndarray:
        """Compute each branch where it is wanted: along the one array axis that matters, or at
        single elements."""
        shape = np.broadcast_shapes(condition.shape, *(x.shape for x in self.axis_values.values()))
        lead = (self.points.components,) if yes.dtype.is_float else ()
        out: np.ndarray | None = None
        for e, here in ((yes, condition), (no, ~condition)):
            if len(along) == 1:
                (axis,) = along
                some = np.flatnonzero(here)
                where: tuple[Any, ...] = (..., some, *(slice(None),) * (len(shape) - axis - 1))
                at = {a: x[where] if x.shape[axis] > 1 else x for a, x in self.axis_values.items()}
                size = (*shape[:axis], len(some), *shape[axis + 1 :])
            else:
                here = np.broadcast_to(here, shape)
                where = (..., here)
                at = {a: np.broadcast_to(x, shape)[here] for a, x in self.axis_values.items()}
                size = (np.count_nonzero(here),)
            x = broadcast_behind(_Run(self.points, at, {}).value(e), lead, size)
            out = np.empty((*lead, *shape), x.dtype) if out is None else out
            out[where] = x
        assert out is not None
        return out

    def extremum(self, e: Expr) -> np.ndarray:
        assert self.points.numbers is not None
        given = set_kind(e, self.points.lone_cap_kind), self.points.numbers, self.points.domain
        for of in (
            (BitSets(*given), TermSets(*given)) if is_pure_extremum(e) else (TermSets(*given),)
        ):
            with suppress(TooManyTerms):
                return of.set_values(self.term_sets(of, e), e)
        raise AssertionError

    def term_sets(self, of: TermSets, e: Expr) -> np.ndarray:
        """Return the terms of a maximum, (..., terms)."""
        match e:
            case Reduce(fn, axes, body) if fn == of.fn:
                x = self.open_sum(axes).term_sets(of, body)
                sizes = [a.size for a in axes]
                x = broadcast_behind(x, (), (*self.depth, *sizes, 1), len(sizes) + 1)
                count = prod(x.shape[-len(sizes) - 1 :])
                return of.deduplicate(x.reshape(*x.shape[: -len(sizes) - 1], count))
            case Apply(fn, args) if fn == of.fn:
                return of.deduplicate(concat_sets([self.term_sets(of, x) for x in args], -1))
            case Apply(fn) if fn == OPPOSITE[of.fn] and (found := cap_of(e)):
                return of.with_cap(self.term_sets(of, found[0]), found[1])
            case Apply("select", (guard, yes, no)):
                told = self.value(guard)
                if told.all() or not told.any():
                    return self.term_sets(of, yes if told.all() else no)
                a, b = (self.term_sets(of, x) for x in (yes, no))
                most = max(a.shape[-1], b.shape[-1])
                return np.where(told[..., None], pad_sets(a, most), pad_sets(b, most))
            case Load(t, index) if t.body is not None:
                which, axes, places = self.unique_places(t, index)
                return np.asarray(self.points.term_sets(of, t.body, axes, places)[which])
        return of.singletons(self.value(e), e)


def broadcast_behind(
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


def pad_sets(x: np.ndarray, size: int) -> np.ndarray:
    """Pad sets (..., n) with leading zeros to a size."""
    more = size - x.shape[-1]
    return np.pad(x, ((0, 0),) * (x.ndim - 1) + ((more, 0),)) if more else x


def concat_sets(point_sets: Sequence[np.ndarray], axis: int) -> np.ndarray:
    """Concatenate sets of several sizes: along axis 0, or as unions along the last axis."""
    if axis:
        shape = np.broadcast_shapes(*(x.shape[:-1] for x in point_sets))
        return np.concatenate([np.broadcast_to(x, (*shape, x.shape[-1])) for x in point_sets], axis)
    most = max(x.shape[-1] for x in point_sets)
    return np.concatenate([pad_sets(x, most) for x in point_sets], axis)


def align_ranks(arrays: Sequence[np.ndarray], kinds: Sequence[object]) -> list[np.ndarray]:
    """Give arrays the same rank behind the components of floats."""
    leads = [int(getattr(k, "is_float", False)) for k in kinds]
    most = max(x.ndim - n for x, n in zip(arrays, leads, strict=True))
    return [
        x.reshape((*x.shape[:n], *(1,) * (most - x.ndim + n), *x.shape[n:]))
        for x, n in zip(arrays, leads, strict=True)
    ]


def is_ring_expression(e: Expr) -> bool:
    """True if an expression has only sums and products, for which component 0 suffices."""
    return all(map(_is_ring_node, subexpressions(e)))


def _is_ring_node(e: Expr) -> bool:
    match e:
        case Reduce(fn):
            return fn == "sum"
        case Load(t):
            return t.dtype.is_float
        case Apply("cast", (x,)):
            return x.dtype == INDEX
        case Apply(fn, args) if e.dtype.is_float:
            return fn == "select" or scalar_function(fn).field_semantics == "ring"
        case Apply(_, args):
            return not any(a.dtype.is_float for a in args)
    return not isinstance(e, Index)


def term_count(e: Expr) -> int:
    """Return the number of terms of the longest nested sum or maximum, at least 1."""
    match e:
        case Reduce(_, axes, body):
            return max(1, prod(a.size for a in axes)) * term_count(body)
        case Apply(_, args):
            return max(map(term_count, args))
        case Load(_, index):
            return max(map(term_count, index), default=1)
    return 1
