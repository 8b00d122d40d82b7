"""Elements of a program at some places only, over a prime field and random inputs.

Inputs are not drawn whole: an element of one is a keyed hash of its place. Only component 0 of an
element is asked for; where nothing but sums and products is taken, the other one is not computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from superopt.partial.multisets import Multisets
from superopt.te import residues
from superopt.te.dtype import INDEX, DType
from superopt.te.expr import Tensor
from superopt.te.field import PrimeField
from superopt.te.fn import function
from superopt.te.keyed import key, mix
from superopt.te.node import Apply, Axis, Const, Expr, Index, Load, Reduce
from superopt.te.walk import parts

AT_ONCE = 1 << 18  # terms of sums
MODULUS = residues.P


@dataclass(slots=True)
class Points:
    """The values of expressions. above: see `PrimeField`. components: of an element, that are
    computed: 1 where `ring` says so. drawn: inputs that are read more often than they have
    elements. terms_only: maxima as functions of their terms (`multisets.py`)."""

    seed: int
    above: int | None = None
    components: int = len(residues.MODULI)
    terms_only: bool = False
    domain: PrimeField = field(init=False)
    drawn: dict[Tensor, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        kind = Multisets if self.terms_only else PrimeField
        self.domain = kind(self.seed, above=self.above)

    def values(self, e: Expr, axes: Sequence[Axis], places: np.ndarray) -> np.ndarray:
        """Component 0 of `e` at places (count, axes)."""
        count = max(1, AT_ONCE // terms(e))
        out = []
        for k in range(0, len(places), count):
            at = {a: places[k : k + count, n] for n, a in enumerate(axes)}
            x = np.asarray(_Run(self, at, {}).value(e))
            x = x[0] if e.dtype.is_float else x
            out.append(np.broadcast_to(x, (len(places[k : k + count]),)))
        return np.concatenate(out) if out else np.zeros(0, np.int64)

    def read(self, t: Tensor, where: np.ndarray) -> np.ndarray:
        size = prod(d for d in t.shape if isinstance(d, int))
        if t not in self.drawn and size <= where.size:
            self.drawn[t] = self.drawing(t, np.arange(size))
        if t in self.drawn:
            return np.take(self.drawn[t], where, -1)
        if not where.ndim:  # numpy warns of single numbers that wrap around
            return self.drawing(t, where[None])[..., 0]
        return self.drawing(t, where)

    def drawing(self, t: Tensor, where: np.ndarray) -> np.ndarray:
        """The elements of an input there."""
        state = mix(where.astype(np.uint64) ^ np.uint64(key(self.seed, t.name)))
        if not t.dtype.is_float:
            return (state % np.uint64(97)).astype(self.domain.store(t.dtype))
        out = np.empty((self.components, *where.shape), np.int64)
        for part, m in zip(out, map(np.uint64, residues.MODULI), strict=False):
            part[...] = state - state // m * m  # faster than a remainder
        return out


@dataclass(slots=True)
class _Run:
    """Arrays have an axis for the places, and one for each sum that is open; floats a pair of
    residues before these."""

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
                    return self.index(fn, args)
                some = [self.value(a) for a in args]
                kinds = [a.dtype for a in args]
                if fn == "cast" and kinds[0] == INDEX:
                    made = residues.of_integers(some[0]) if dtype.is_float else some[0]
                    return self.some(np.asarray(made), dtype)
                return domain.apply(fn, even(some, kinds), kinds, dtype)
            case Load(t, index):
                where = np.zeros((), np.int64)
                for i, n in zip(index, t.shape, strict=True):
                    assert isinstance(n, int)
                    where = np.asarray(where * n + np.clip(self.value(i), 0, n - 1))
                return self.points.read(t, where)
            case Reduce(fn, axes, body, dtype):
                return self.total(fn, axes, body)
            case Index(element, bound):
                place, size = self.value(element), self.value(bound)
                return np.where(place < 0, place + size, place)
        raise TypeError(f"{type(e).__name__} {e}")

    def some(self, x: np.ndarray, dtype: DType) -> np.ndarray:
        """Of an element those components that are computed."""
        return x[: self.points.components] if dtype.is_float else x

    def index(self, fn: str, args: Sequence[Expr]) -> np.ndarray:
        some = [self.value(a) for a in args]
        if fn == "select":
            return np.where(some[0], some[1], some[2])
        out = some[0]
        for x in some[1:]:
            out = _INDEX[fn](out, x)
        return np.negative(out) if fn == "neg" else np.asarray(out)

    def total(self, fn: str, axes: Sequence[Axis], body: Expr) -> np.ndarray:
        sizes = [_size(a) for a in axes]
        inner = {a: x[..., None] for a, x in self.at.items()}
        depth = max((x.ndim for x in inner.values()), default=1)
        places = np.indices(sizes).reshape(len(sizes), *(1,) * (depth - 1), -1)
        run = _Run(self.points, {**inner, **dict(zip(axes, places, strict=True))}, {})
        value = run.value(body)
        lead = int(body.dtype.is_float)
        shape = (*value.shape[:lead], *(1,) * (depth - value.ndim + lead), *value.shape[lead:])
        value = value.reshape(shape)
        if value.shape[-1] != prod(sizes):  # no index of the sum in what is summed
            value = np.broadcast_to(value, (*value.shape[:-1], prod(sizes)))
        return self.points.domain.reduce(fn, value, (-1,), body.dtype)[..., 0]


_INDEX = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "floordiv": np.floor_divide,
    "mod": np.mod, "min": np.minimum, "max": np.maximum, "lt": np.less, "le": np.less_equal,
    "eq": np.equal, "ne": np.not_equal,
}  # fmt: skip


def even(some: Sequence[np.ndarray], kinds: Sequence[object]) -> list[np.ndarray]:
    """Arrays with axes for the same sums, behind the residues of floats."""
    leads = [int(getattr(k, "is_float", False)) for k in kinds]
    most = max(x.ndim - n for x, n in zip(some, leads, strict=True))
    return [
        x.reshape(*x.shape[:n], *(1,) * (most - x.ndim + n), *x.shape[n:])
        for x, n in zip(some, leads, strict=True)
    ]


def ring(e: Expr) -> bool:
    """Is it made of sums and products only, for which component 0 of an element is enough?"""
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
    """Terms of the longest sum, or maximum, in a sum."""
    match e:
        case Reduce(_, axes, body):
            return prod(map(_size, axes)) * terms(body)
        case Apply(_, args):
            return max(map(terms, args))
        case Load(_, index):
            return max(map(terms, index), default=1)
    return 1


def _size(a: Axis) -> int:
    assert isinstance(a.extent, int), a
    return a.extent
