"""Maxima and minima as sets of terms, independent of the order of the terms.

Equal sets are equal for all inputs. A term may be capped: the minimum of it and a constant, since
the minimum of a maximum and a constant is the maximum of the capped terms. For a term that occurs
twice the larger cap counts; of constants only the largest remains, and it removes terms capped by
it. Minima are the same with the order reversed.

Different sets are different functions where `sets_decide` says so, as for windows over inputs or
over sums of inputs. Then inputs of many orders need not be tried.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from superopt.te.expr import Tensor
from superopt.te.field import PrimeField
from superopt.te.fn import function, unit
from superopt.te.keyed import key, mix
from superopt.te.node import Apply, Const, Expr, Load, Number, Reduce
from superopt.te.residues import P, Q
from superopt.te.walk import operands, parts

OTHER = {"max": "min", "min": "max"}
BITS = 12  # of a cap
FREE = (1 << BITS) - 1  # no cap
NUMBER = P  # stands for the term of a number, which is its cap


def extreme(e: Expr) -> str | None:
    """Return "max" or "min" for a maximum or minimum of floats, else None."""
    if isinstance(e, Apply | Reduce) and e.fn in OTHER and e.dtype.is_float:
        return e.fn
    return None


def capped(e: Expr) -> tuple[Expr, Number] | None:
    """Return the operand and the constant of a maximum or minimum with a constant, else None."""
    match e:
        case Apply(_, (x, Const(n))) | Apply(_, (Const(n), x)) if extreme(e):
            return x, n
    return None


def kind(e: Expr, alone: str = "max") -> str:
    """Return "max" or "min": the kind of sets that `e` is evaluated in. lone_cap_kind: the kind for
    caps of a single value, which may be either."""
    of = capped(e)
    if of is not None:
        inner = of[0]
        while isinstance(inner, Load) and inner.tensor.body is not None:
            inner = inner.tensor.body
        return kind(inner, alone) if extreme(inner) else alone
    found = extreme(e)
    assert found is not None
    return found


def numbers_of(bodies: Iterable[Expr]) -> tuple[Number, ...]:
    """Return the sorted float constants, and known function values of them."""
    some = (e for b in bodies for e in parts(b) if isinstance(e, Const))
    found = {e.value for e in some if e.dtype.is_float}
    return tuple(sorted({v for v in found if v == v} | {0, 1, Fraction(1, 2)}))


@dataclass(frozen=True, slots=True)
class Sets:
    """Sets as arrays (..., terms) of positive codes of a term and its cap; 0 is no term. numbers:
    the sorted constants that may be caps."""

    fn: str
    numbers: tuple[Number, ...]
    domain: PrimeField

    def cap(self, n: Number) -> int:
        at = self.numbers.index(n)
        return at if self.fn == "max" else len(self.numbers) - 1 - at

    def number(self, cap: int) -> Number:
        return self.numbers[cap if self.fn == "max" else len(self.numbers) - 1 - cap]

    def term(self, x: np.ndarray, e: Expr) -> np.ndarray:
        """Return elements (2, ...) as singletons; neutral elements are the empty set. An element
        may equal a constant, such as a sum of padding zeros."""
        nothing = unit(self.fn, e.dtype)
        out = np.asarray((x[0] << BITS | FREE) + 1)
        for n in (*self.numbers, nothing):
            one = 0 if n == nothing else (NUMBER << BITS | self.cap(n)) + 1
            out = np.where(x[0] == self.domain.const(n, e.dtype)[0], one, out)
        return np.asarray(out[..., None])

    def least(self, x: np.ndarray, n: Number) -> np.ndarray:
        """Cap all terms by a constant."""
        cap = np.minimum(x - 1 & FREE, self.cap(n))
        return self.united(np.where(x == 0, 0, ((x - 1 >> BITS) << BITS | cap) + 1))

    def united(self, x: np.ndarray) -> np.ndarray:
        """Remove duplicate and absorbed terms, and trim to the size of the largest set."""
        if not x.shape[-1]:
            return np.zeros((*x.shape[:-1], 1), np.int64)
        x = np.sort(x, axis=-1)
        terms = x - 1 >> BITS
        same = terms[..., :-1] == terms[..., 1:]
        numbers = terms[..., -1] == NUMBER
        if numbers.any():
            absorbed = np.where(numbers, x[..., -1] - 1 & FREE, -1)
            same |= (x[..., :-1] - 1 & FREE) <= absorbed[..., None]
        if same.any():
            x[..., :-1] *= ~same
            x.sort(axis=-1)
        full = np.count_nonzero(x, axis=-1).max(initial=1)
        return x[..., x.shape[-1] - full :]

    def value(self, x: np.ndarray, e: Expr) -> np.ndarray:
        """Return the elements (2, ...) of sets: the term of a singleton, the constant, or a
        hash."""
        count, only = np.count_nonzero(x, axis=-1), x[..., -1] - 1
        total = np.add.reduce(np.where(x == 0, np.uint64(0), self.state(x)), axis=-1)
        return self.valued(count, only, total, e)

    def state(self, x: np.ndarray) -> np.ndarray:
        """Return hashes of terms."""
        return mix((x - 1).astype(np.uint64) ^ np.uint64(key(self.domain.seed, f"of {self.fn}")))

    def valued(self, count: np.ndarray, only: np.ndarray, total: np.ndarray, e: Expr) -> np.ndarray:
        """Return the elements of sets with `count` terms, from the only term or the sum of the
        hashes."""
        alone = (count == 1) & (only & FREE == FREE)
        first = np.where(alone, (only >> BITS).astype(np.uint64), mix(total) % np.uint64(P))
        second = mix(first) % np.uint64(Q)
        out = np.stack([first, second]).astype(np.int64)
        number = (count == 1) & (only >> BITS == NUMBER)
        for cap in np.unique(only[number] & FREE).tolist():
            here = number & (only & FREE == cap)
            out[:, here] = self.domain.const(self.number(cap), e.dtype)[:, None]
        out[:, count == 0] = self.domain.const(unit(self.fn, e.dtype), e.dtype)[:, None]
        return out


def by_terms(bodies: Iterable[Expr]) -> bool:
    """True if the order of elements matters in maxima and minima only."""
    return all(
        e.fn in OTHER or function(e.fn).field != "order"
        for body in bodies
        for e in parts(body)
        if isinstance(e, Apply) and e.args[0].dtype.is_float and e.fn not in ("select", "cast")
    )


def kinds(bodies: Sequence[Expr]) -> set[str]:
    """Return which of "max" and "min" are taken of several terms."""
    return {e.fn for b in bodies for e in parts(b)
            if isinstance(e, Apply | Reduce) and extreme(e) and capped(e) is None}  # fmt: skip


def alone(bodies: Sequence[Expr]) -> str:
    """Return the kind of caps of a single value; see `set_kind`."""
    return "min" if kinds(bodies) == {"min"} else "max"


def decided(bodies: Sequence[Expr]) -> bool:
    """Are elements with other sets of terms other ones?

    Functions max(S) of different sets S are linearly independent over the numbers, which may stand
    in any order: of one that puts all but a set U first, and then a u in U, a sum of them has as
    many u as the sets within U that hold u say. So this is asked of sums of maxima, or of minima,
    with factors that are none; of maxima with caps of these alone, for max(x, 0) + min(x, 0) is x;
    and of terms that are what is read: max(x + z, y + z) is max(x, y) + z, max(2 x, 2 y) is
    2 max(x, y), and the mean of x and y is never above both. A single maximum may be of sums of
    products, too, in which each product is there once: none of these is between others."""
    if len(kinds(bodies)) > 1 or not by_terms(bodies):
        return False
    some = [e for body in bodies for e in parts(body)]
    taken = [e for e in some if extreme(e)]
    cap = alone(bodies)
    leaves = {id(x): x for e in taken for x in _leaves(e, kind(e, cap))}.values()
    inside = _Inside()
    over = [e for e in some if isinstance(e, Apply | Reduce) and inside.of(e) and not _tree(e)]
    least = len({e.fn for e in taken if isinstance(e, Apply | Reduce)}) > 1
    if not taken or (least and over) or not all(_linear(e, inside) for e in over):
        return False
    if all(isinstance(x, Load) for x in leaves):
        return True
    tops = [b for b in bodies if not inside.of(b)]
    return not over and not least and all(map(_once, (*leaves, *tops)))


def _once(e: Expr) -> bool:
    """True for a sum of products without repeated products."""
    match e:
        case Load():
            return True
        case Const(value):
            return value == 0
        case Apply("select", (_, *some)):
            return all(map(_once, some))
        case Apply("add" | "mul", (a, b)):
            return _once(a) and _once(b) and _read(a).isdisjoint(_read(b))
        case Reduce("sum", axes, body):
            told = {i for x in parts(body) if isinstance(x, Load) for i in x.index}
            return told.issuperset(axes) and _once(body)
    return False


def _read(e: Expr) -> set[Tensor]:
    return {x.tensor for x in parts(e) if isinstance(x, Load)}


def _tree(e: Expr) -> bool:
    return extreme(e) is not None or (isinstance(e, Apply) and e.fn == "select")


def _leaves(e: Expr, of: str) -> Iterator[Expr]:
    """Yield the terms of a maximum, nested ones included, without constants."""
    match e:
        case Const():
            pass
        case Apply("select", (_, *some)):
            for x in some:
                yield from _leaves(x, of)
        case Apply(fn, args) if fn == of or capped(e):
            for x in args:
                yield from _leaves(x, of)
        case Reduce(fn, _, body) if fn == of:
            yield from _leaves(body, of)
        case _:
            yield e


@dataclass(slots=True)
class _Inside:
    """Whether an expression contains a maximum, cached by id."""

    told: dict[int, tuple[Expr, bool]] = field(default_factory=dict)

    def of(self, e: Expr) -> bool:
        if id(e) not in self.told:
            self.told[id(e)] = (e, extreme(e) is not None or any(map(self.of, operands(e))))
        return self.told[id(e)][1]


def _linear(e: Apply | Reduce, inside: _Inside) -> bool:
    """True if the expression is linear in the maxima that it contains."""
    match e:
        case Reduce(fn, _, body):
            return fn in ("sum", *OTHER) or not inside.of(body)
        case Apply("mul", args):
            return sum(map(inside.of, args)) < 2
        case Apply("div", (_, by)):
            return not inside.of(by)
        case Apply("add" | "sub" | "neg" | "select" | "max" | "min"):
            return True
    return not any(map(inside.of, e.args))
