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

from superopt.te.analysis.walk import operands, subexpressions
from superopt.te.eval.keyed_hash import keyed_hash, mix
from superopt.te.eval.prime_field import PrimeField
from superopt.te.eval.residues import P, Q
from superopt.te.expr.functions import identity_element, scalar_function
from superopt.te.expr.node import Apply, Const, Expr, Load, Number, Reduce
from superopt.te.expr.tensor import Tensor

OPPOSITE = {"max": "min", "min": "max"}
CAP_BITS = 12  # of a cap
NO_CAP = (1 << CAP_BITS) - 1  # no cap
NUMBER_TERM = P  # stands for the term of a number, which is its cap


def extremum_kind(e: Expr) -> str | None:
    """Return "max" or "min" for a maximum or minimum of floats, else None."""
    if isinstance(e, Apply | Reduce) and e.fn in OPPOSITE and e.dtype.is_float:
        return e.fn
    return None


def cap_of(e: Expr) -> tuple[Expr, Number] | None:
    """Return the operand and the constant of a maximum or minimum with a constant, else None."""
    match e:
        case Apply(_, (x, Const(n))) | Apply(_, (Const(n), x)) if extremum_kind(e):
            return x, n
    return None


def set_kind(e: Expr, lone_cap_kind: str = "max") -> str:
    """Return "max" or "min": the kind of sets that `e` is evaluated in. lone_cap_kind: the kind for
    caps of a single value, which may be either."""
    of = cap_of(e)
    if of is not None:
        inner = of[0]
        while isinstance(inner, Load) and inner.tensor.body is not None:
            inner = inner.tensor.body
        return set_kind(inner, lone_cap_kind) if extremum_kind(inner) else lone_cap_kind
    found = extremum_kind(e)
    assert found is not None
    return found


def float_constants(bodies: Iterable[Expr]) -> tuple[Number, ...]:
    """Return the sorted float constants, and known function values of them."""
    some = (e for b in bodies for e in subexpressions(b) if isinstance(e, Const))
    found = {e.value for e in some if e.dtype.is_float}
    return tuple(sorted({v for v in found if v == v} | {0, 1, Fraction(1, 2)}))


@dataclass(frozen=True, slots=True)
class TermSets:
    """Sets as arrays (..., terms) of positive codes of a term and its cap; 0 is no term. numbers:
    the sorted constants that may be caps."""

    fn: str
    numbers: tuple[Number, ...]
    domain: PrimeField

    def cap_index(self, n: Number) -> int:
        at = self.numbers.index(n)
        return at if self.fn == "max" else len(self.numbers) - 1 - at

    def number(self, cap: int) -> Number:
        return self.numbers[cap if self.fn == "max" else len(self.numbers) - 1 - cap]

    def singletons(self, x: np.ndarray, e: Expr) -> np.ndarray:
        """Return elements (2, ...) as singletons; neutral elements are the empty set. An element
        may equal a constant, such as a sum of padding zeros."""
        nothing = identity_element(self.fn, e.dtype)
        out = np.asarray((x[0] << CAP_BITS | NO_CAP) + 1)
        for n in (*self.numbers, nothing):
            one = 0 if n == nothing else (NUMBER_TERM << CAP_BITS | self.cap_index(n)) + 1
            out = np.where(x[0] == self.domain.const(n, e.dtype)[0], one, out)
        return np.asarray(out[..., None])

    def with_cap(self, x: np.ndarray, n: Number) -> np.ndarray:
        """Cap all terms by a constant."""
        cap = np.minimum(x - 1 & NO_CAP, self.cap_index(n))
        return self.deduplicate(np.where(x == 0, 0, ((x - 1 >> CAP_BITS) << CAP_BITS | cap) + 1))

    def deduplicate(self, x: np.ndarray) -> np.ndarray:
        """Remove duplicate and absorbed terms, and trim to the size of the largest set."""
        if not x.shape[-1]:
            return np.zeros((*x.shape[:-1], 1), np.int64)
        x = np.sort(x, axis=-1)
        terms = x - 1 >> CAP_BITS
        same = terms[..., :-1] == terms[..., 1:]
        numbers = terms[..., -1] == NUMBER_TERM
        if numbers.any():
            absorbed = np.where(numbers, x[..., -1] - 1 & NO_CAP, -1)
            same |= (x[..., :-1] - 1 & NO_CAP) <= absorbed[..., None]
        if same.any():
            x[..., :-1] *= ~same
            x.sort(axis=-1)
        full = np.count_nonzero(x, axis=-1).max(initial=1)
        return x[..., x.shape[-1] - full :]

    def set_values(self, x: np.ndarray, e: Expr) -> np.ndarray:
        """Return the elements (2, ...) of sets: the term of a singleton, the constant, or a
        hash."""
        count, only = np.count_nonzero(x, axis=-1), x[..., -1] - 1
        total = np.add.reduce(np.where(x == 0, np.uint64(0), self.term_hashes(x)), axis=-1)
        return self.values_from_hashes(count, only, total, e)

    def term_hashes(self, x: np.ndarray) -> np.ndarray:
        """Return hashes of terms."""
        return mix(
            (x - 1).astype(np.uint64) ^ np.uint64(keyed_hash(self.domain.seed, f"of {self.fn}"))
        )

    def values_from_hashes(
        self, count: np.ndarray, only: np.ndarray, total: np.ndarray, e: Expr
    ) -> np.ndarray:
        """Return the elements of sets with `count` terms, from the only term or the sum of the
        hashes."""
        alone = (count == 1) & (only & NO_CAP == NO_CAP)
        first = np.where(alone, (only >> CAP_BITS).astype(np.uint64), mix(total) % np.uint64(P))
        second = mix(first) % np.uint64(Q)
        out = np.stack([first, second]).astype(np.int64)
        number = (count == 1) & (only >> CAP_BITS == NUMBER_TERM)
        for cap in np.unique(only[number] & NO_CAP).tolist():
            here = number & (only & NO_CAP == cap)
            out[:, here] = self.domain.const(self.number(cap), e.dtype)[:, None]
        out[:, count == 0] = self.domain.const(identity_element(self.fn, e.dtype), e.dtype)[:, None]
        return out


def depends_on_terms_only(bodies: Iterable[Expr]) -> bool:
    """True if the order of elements matters in maxima and minima only."""
    return all(
        e.fn in OPPOSITE or scalar_function(e.fn).field_semantics != "order"
        for body in bodies
        for e in subexpressions(body)
        if isinstance(e, Apply) and e.args[0].dtype.is_float and e.fn not in ("select", "cast")
    )


def extremum_kinds(bodies: Sequence[Expr]) -> set[str]:
    """Return which of "max" and "min" are taken of several terms."""
    return {
        e.fn
        for b in bodies
        for e in subexpressions(b)
        if isinstance(e, Apply | Reduce) and extremum_kind(e) and cap_of(e) is None
    }


def lone_cap_kind(bodies: Sequence[Expr]) -> str:
    """Return the kind of caps of a single value; see `set_kind`."""
    return "min" if extremum_kinds(bodies) == {"min"} else "max"


def sets_decide(bodies: Sequence[Expr]) -> bool:
    """True if elements with different sets of terms differ.

    Functions max(S) of different sets S are linearly independent over the numbers, which may stand
    in any order: of one that puts all but a set U first, and then a u in U, a sum of them has as
    many u as the sets within U that hold u say. So this is asked of sums of maxima, or of minima,
    with factors that are none; of maxima with caps of these alone, for max(x, 0) + min(x, 0) is x;
    and of terms that are what is read: max(x + z, y + z) is max(x, y) + z, max(2 x, 2 y) is
    2 max(x, y), and the mean of x and y is never above both. A single maximum may be of sums of
    products, too, in which each product is there once: none of these is between others."""
    if len(extremum_kinds(bodies)) > 1 or not depends_on_terms_only(bodies):
        return False
    some = [e for body in bodies for e in subexpressions(body)]
    taken = [e for e in some if extremum_kind(e)]
    cap = lone_cap_kind(bodies)
    leaves = {id(x): x for e in taken for x in _set_terms(e, set_kind(e, cap))}.values()
    inside = _ContainsExtremum()
    over = [
        e for e in some if isinstance(e, Apply | Reduce) and inside.contains(e) and not _is_tree(e)
    ]
    least = len({e.fn for e in taken if isinstance(e, Apply | Reduce)}) > 1
    if not taken or (least and over) or not all(_is_linear_in_extrema(e, inside) for e in over):
        return False
    if all(isinstance(x, Load) for x in leaves):
        return True
    tops = [b for b in bodies if not inside.contains(b)]
    return not over and not least and all(map(_is_multilinear, (*leaves, *tops)))


def _is_multilinear(e: Expr) -> bool:
    """True for a sum of products without repeated products."""
    match e:
        case Load():
            return True
        case Const(value):
            return value == 0
        case Apply("select", (_, *some)):
            return all(map(_is_multilinear, some))
        case Apply("add" | "mul", (a, b)):
            return (
                _is_multilinear(a)
                and _is_multilinear(b)
                and _tensors_read(a).isdisjoint(_tensors_read(b))
            )
        case Reduce("sum", axes, body):
            told = {i for x in subexpressions(body) if isinstance(x, Load) for i in x.index}
            return told.issuperset(axes) and _is_multilinear(body)
    return False


def _tensors_read(e: Expr) -> set[Tensor]:
    return {x.tensor for x in subexpressions(e) if isinstance(x, Load)}


def _is_tree(e: Expr) -> bool:
    return extremum_kind(e) is not None or (isinstance(e, Apply) and e.fn == "select")


def _set_terms(e: Expr, extremum: str) -> Iterator[Expr]:
    """Yield the terms of a maximum, nested ones included, without constants."""
    match e:
        case Const():
            pass
        case Apply("select", (_, *some)):
            for x in some:
                yield from _set_terms(x, extremum)
        case Apply(fn, args) if fn == extremum or cap_of(e):
            for x in args:
                yield from _set_terms(x, extremum)
        case Reduce(fn, _, body) if fn == extremum:
            yield from _set_terms(body, extremum)
        case _:
            yield e


@dataclass(slots=True)
class _ContainsExtremum:
    """Whether an expression contains a maximum, cached by id."""

    memo: dict[int, tuple[Expr, bool]] = field(default_factory=dict)

    def contains(self, e: Expr) -> bool:
        if id(e) not in self.memo:
            self.memo[id(e)] = (
                e,
                extremum_kind(e) is not None or any(map(self.contains, operands(e))),
            )
        return self.memo[id(e)][1]


def _is_linear_in_extrema(e: Apply | Reduce, inside: _ContainsExtremum) -> bool:
    """True if the expression is linear in the maxima that it contains."""
    match e:
        case Reduce(fn, _, body):
            return fn in ("sum", *OPPOSITE) or not inside.contains(body)
        case Apply("mul", args):
            return sum(map(inside.contains, args)) < 2
        case Apply("div", (_, by)):
            return not inside.contains(by)
        case Apply("add" | "sub" | "neg" | "select" | "max" | "min"):
            return True
    return not any(map(inside.contains, e.args))
