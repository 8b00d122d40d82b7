"""Maxima and minima as sets of their terms, whatever the order of these.

What has the same sets is equal for any numbers. The other way round it is not so: of max(x, min(x,
y)) the second term is never the largest. Where `decided` says so it is, as for windows over what is
given, or over sums of that: numbers of as many orders as there are terms need not be asked then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from superopt.te.field import PrimeField
from superopt.te.fn import function, unit
from superopt.te.keyed import key, mix
from superopt.te.node import Apply, Const, Expr, Index, Load, Reduce
from superopt.te.residues import P, Q
from superopt.te.walk import parts

EXTREMES = ("max", "min")
BITS = 31  # of a residue


def extreme(e: Expr) -> str | None:
    """Of what the largest or the least is taken: which of the two."""
    if isinstance(e, Apply | Reduce) and e.fn in EXTREMES and e.dtype.is_float:
        return e.fn
    return None


def terms_of(fn: str, x: np.ndarray, domain: PrimeField, e: Expr) -> np.ndarray:
    """Elements (2, ...) as sets of one, (..., 1): a number above 0; of what changes no maximum
    none, which is 0."""
    nothing = domain.const(unit(fn, e.dtype), e.dtype)[0]
    return np.where(x[0] == nothing, 0, (x[0] << BITS | x[1]) + 1)[..., None]


def united(x: np.ndarray) -> np.ndarray:
    """Sets (..., n) in which numbers may be twice, without these, of as many as the largest has.
    Numbers are the same where their component 0 is."""
    if x.shape[-1] < 2:
        return x if x.shape[-1] else np.zeros((*x.shape[:-1], 1), np.int64)
    x = np.sort(x, axis=-1)
    again = (x[..., 1:] - 1 >> BITS) == (x[..., :-1] - 1 >> BITS)
    if again.any():
        x[..., 1:][again] = 0
        x.sort(axis=-1)
    empty = np.count_nonzero(x.reshape(-1, x.shape[-1]).any(0)) if x.size else 1
    return x[..., x.shape[-1] - max(1, empty) :]


def number_of(fn: str, x: np.ndarray, domain: PrimeField, e: Expr) -> np.ndarray:
    """The element (2, ...) that stands for a set: of one term that, of several a hash."""
    only, count = x[..., -1] - 1, np.count_nonzero(x, axis=-1)
    state = mix((x - 1 >> BITS).astype(np.uint64) ^ np.uint64(key(domain.seed, f"of {fn}")))
    total = np.add.reduce(np.where(x == 0, np.uint64(0), state), axis=-1)
    total = mix(np.atleast_1d(total)).reshape(count.shape)  # single numbers are not to wrap around
    hashed = np.stack([total % np.uint64(P), (total >> np.uint64(32)) % np.uint64(Q)])
    one = np.stack([only >> BITS, only & (1 << BITS) - 1])
    nothing = domain.const(unit(fn, e.dtype), e.dtype).reshape(2, *(1,) * count.ndim)
    return np.where(count == 0, nothing, np.where(count == 1, one, hashed.astype(np.int64)))


def by_terms(bodies: Iterable[Expr]) -> bool:
    """Is nothing else asked of the order of elements?"""
    return all(
        e.fn in EXTREMES or function(e.fn).field != "order"
        for body in bodies
        for e in parts(body)
        if isinstance(e, Apply) and e.args[0].dtype.is_float and e.fn not in ("select", "cast")
    )


def decided(bodies: Sequence[Expr]) -> bool:
    """Are elements with other sets of terms other ones?

    Functions max(S) of different sets S are linearly independent over the numbers, which may stand
    in any order: of one that puts all but a set U first, and then a u in U, a sum of them has as
    many u as the sets within U that hold u say. So this is asked of sums of maxima, or of minima,
    with factors that are none; of terms that are none, and of which one at most is a number, for
    it is known which of two is larger. (What is taken from another, or by which it is divided, may
    leave one.)"""
    some = [e for body in bodies for e in parts(body)]
    kinds = {fn for e in some if (fn := extreme(e))}
    if len(kinds) != 1 or not by_terms(bodies):
        return False
    (kind,) = kinds
    leaves = {id(x): x for e in some if extreme(e) for x in _leaves(e, kind)}.values()
    numbers = {x for x in leaves if not any(isinstance(y, Load) for y in parts(x))}
    inside = _Inside()
    if any(map(inside.of, leaves)) or len(numbers) > 1 or any(map(_cancels, leaves)):
        return False
    return all(_linear(e, inside) for e in some if isinstance(e, Apply | Reduce))


def _leaves(e: Expr, kind: str) -> Iterator[Expr]:
    """The terms of a maximum, those of maxima among them; not what changes none."""
    match e:
        case Apply("select", (_, *some)):
            for x in some:
                yield from _leaves(x, kind)
        case Apply(fn, args) if fn == kind:
            for x in args:
                yield from _leaves(x, kind)
        case Reduce(fn, _, body) if fn == kind:
            yield from _leaves(body, kind)
        case Const(value) if value == unit(kind, e.dtype):
            pass
        case _:
            yield e


def _cancels(e: Expr) -> bool:
    """May what is read be gone from it?"""
    for x in parts(e):
        match x:
            case Apply("sub" | "neg" | "pow", (a, *_)) if a.dtype.is_float:
                return True
            case Apply("div", (_, by)) if any(isinstance(y, Load) for y in parts(by)):
                return True
    return False


@dataclass(slots=True)
class _Inside:
    """Is any maximum in an expression? told: by ids, of what is held."""

    told: dict[int, tuple[Expr, bool]] = field(default_factory=dict)

    def of(self, e: Expr) -> bool:
        if id(e) not in self.told:
            self.told[id(e)] = (e, extreme(e) is not None or any(map(self.of, _within(e))))
        return self.told[id(e)][1]


def _within(e: Expr) -> tuple[Expr, ...]:
    match e:
        case Apply(_, args) | Load(_, args):
            return args
        case Reduce(_, _, body):
            return (body,)
        case Index(element, bound):
            return element, bound
    return ()


def _linear(e: Apply | Reduce, inside: _Inside) -> bool:
    """Is it so in the maxima of which it is made?"""
    match e:
        case Reduce(fn, _, body):
            return fn in ("sum", *EXTREMES) or not inside.of(body)
        case Apply("mul", args):
            return sum(map(inside.of, args)) < 2
        case Apply("div", (_, by)):
            return not inside.of(by)
        case Apply("add" | "sub" | "neg" | "select" | "max" | "min"):
            return True
    return not any(map(inside.of, e.args))
