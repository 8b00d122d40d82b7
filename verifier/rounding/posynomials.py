"""Posynomials: sums of positive multiples of products of powers of positive numbers.

Magnitudes and errors over symbolic sizes and scales are posynomials, as they are sums and products
of such numbers. A condition `monomial <= monomial` is linear in the logarithms of the numbers, so
the largest value of a monomial under conditions is a linear program.

    Boyd, Kim, Vandenberghe, Hassibi: A tutorial on geometric programming, 2007, section 2
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

from superopt.verifier.poly.lazy_z3 import z3

Powers = tuple[tuple[str, int], ...]  # of symbols, in order, without exponents of 0
LOG_MARGIN = Fraction(1, 10**9)  # more than the error of a logarithm in float64
MAX_LOGARITHM = 1000  # of a float64
MAX_QUERY_WORK = 2_000_000  # of Z3's resource counter


@dataclass(frozen=True, slots=True)
class Posynomial:
    """The sum of coefficients, which are at least 0, times powers of symbols."""

    terms: Mapping[Powers, float]

    def __add__(self, other: Posynomial | float) -> Posynomial:
        out = dict(self.terms)
        for powers, c in as_posynomial(other).terms.items():
            out[powers] = out.get(powers, 0.0) + c
        return Posynomial(out)

    def __mul__(self, other: Posynomial | float) -> Posynomial:
        out: dict[Powers, float] = {}
        for p, c in self.terms.items():
            for q, d in as_posynomial(other).terms.items():
                powers = _multiply_powers(p, q)
                out[powers] = out.get(powers, 0.0) + c * d
        return Posynomial(out)

    __radd__, __rmul__ = __add__, __mul__

    def __str__(self) -> str:
        return " + ".join(_show_monomial(p, c) for p, c in self.terms.items()) or "0"

    @property
    def single_term(self) -> tuple[Powers, float] | None:
        """The only term, None if there are several, or none."""
        return next(iter(self.terms.items())) if len(self.terms) == 1 else None

    def inverse(self) -> Posynomial | None:
        """Return 1 / self for a monomial; None for a sum."""
        one = self.single_term
        if one is None or not one[1]:
            return None
        return Posynomial({tuple((n, -e) for n, e in one[0]): 1.0 / one[1]})


@dataclass(frozen=True, slots=True)
class Condition:
    """low <= high, of two monomials."""

    low: Posynomial
    high: Posynomial


def as_posynomial(x: Posynomial | float) -> Posynomial:
    if isinstance(x, Posynomial):
        return x
    return Posynomial({(): float(x)} if x else {})


def symbol(name: str) -> Posynomial:
    """Return a positive number that is not known."""
    return Posynomial({((name, 1),): 1.0})


def upper_bound_of_both(a: Posynomial, b: Posynomial) -> Posynomial:
    """Return a posynomial that is at least `a` and at least `b`, term by term."""
    names = dict.fromkeys((*a.terms, *b.terms))
    return Posynomial({p: max(a.terms.get(p, 0.0), b.terms.get(p, 0.0)) for p in names})


def least_upper_bound(x: Posynomial, conditions: Sequence[Condition]) -> float:
    """Return a number that `x` is at most, wherever the conditions hold: the sum of the largest
    values of its terms. Infinite if a term has none."""
    known = tuple(c for c in map(_logarithm, conditions) if c is not None)
    total = 0.0
    for powers, c in x.terms.items():
        total += c * _largest_product(powers, known) if c else 0.0
        if math.isinf(total):
            break
    return total


@dataclass(frozen=True, slots=True)
class _Logarithm:
    """log(product of powers) <= limit."""

    powers: Powers
    limit: Fraction


def _logarithm(c: Condition) -> _Logarithm | None:
    """Return a condition in base-2 logarithms, a little wider; None if a side is a sum: a bound
    holds without it, too."""
    low, high = c.low.single_term, c.high.single_term
    if low is None or high is None or not low[1] or not high[1]:
        return None
    limit = Fraction(math.log2(high[1])) - Fraction(math.log2(low[1])) + LOG_MARGIN
    return _Logarithm(_multiply_powers(low[0], tuple((n, -e) for n, e in high[0])), limit)


@lru_cache(maxsize=1 << 12)  # instances of a rule have the same ones
def _largest_product(powers: Powers, conditions: tuple[_Logarithm, ...]) -> float:
    """Return an upper bound of a product of powers, by a linear program in the logarithms."""
    if not powers:
        return 1.0
    logs: dict[str, Any] = {}

    def log_of(p: Powers) -> Any:
        return z3.Sum([e * logs.setdefault(n, z3.Real(n)) for n, e in p] or [z3.RealVal(0)])

    solver = z3.Optimize()
    solver.set("rlimit", MAX_QUERY_WORK)
    for c in conditions:
        solver.add(log_of(c.powers) <= z3.Q(c.limit.numerator, c.limit.denominator))
    largest = solver.maximize(log_of(powers))
    if solver.check() != z3.sat:
        return math.inf
    found = solver.upper(largest)
    if not z3.is_rational_value(found):  # unbounded
        return math.inf
    log = Fraction(found.numerator_as_long(), found.denominator_as_long())
    return math.inf if log > MAX_LOGARITHM else 2.0 ** float(log + LOG_MARGIN)


def _multiply_powers(a: Powers, b: Powers) -> Powers:
    out = dict(a)
    for name, e in b:
        out[name] = out.get(name, 0) + e
    return tuple(sorted((n, e) for n, e in out.items() if e))


def _show_monomial(powers: Iterable[tuple[str, int]], c: float) -> str:
    factors = [n if e == 1 else f"{n}**{e}" for n, e in powers]
    return " * ".join([f"{c:.6g}", *factors] if c != 1 or not factors else factors)
