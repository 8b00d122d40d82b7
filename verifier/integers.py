"""Quotients and remainders of integers without overflow."""

from __future__ import annotations

from fractions import Fraction

from superopt.verifier import normal as N
from superopt.verifier import poly as P
from superopt.verifier.algebra import power
from superopt.verifier.facts import Facts, eq, ge
from superopt.verifier.normal import NF, Factor, Term
from superopt.verifier.order import dominated
from superopt.verifier.poly import Poly
from superopt.verifier.simplify import quotient, times

QUOTIENT, MODULO = "div of integers", "mod of integers"


def toward_zero(args: list[NF], facts: Facts) -> NF:
    """Return the quotient rounded toward zero. The quotient of a remainder is zero, nested divisors
    multiply, and negation of a negates the quotient."""
    a, b = args
    if b.constant == 1 or not a.terms:
        return a
    for f in [f for t in a.terms for f, _ in t.powers]:
        if isinstance(f, N.Fn) and f.name == QUOTIENT and f.args[1] == b:
            left = N.minus(f.args[0], times(b, power(f), facts))
            if a in (left, N.scaled(left, -1)):
                return N.zero()
    if a.terms[0].coefficient < 0:
        return N.scaled(toward_zero([N.scaled(a, -1), b], facts), -1)
    inner = _only(a.single, QUOTIENT)
    if inner is not None:
        return toward_zero([inner[0], times(inner[1], b, facts)], facts)
    return power(N.fn(QUOTIENT, (a, b)))


def remainder(args: list[NF], facts: Facts) -> NF:
    """Return the remainder with the sign of the divisor; it is idempotent. For n > 0 it is a where
    0 <= a < n, and a - n * quotient where 0 <= a."""
    a, b = args
    inner = _only(a.single, MODULO)
    if inner is not None and inner[1] is b:
        return a
    n = as_poly(b, facts)
    if n is None or not facts.holds(ge(n - 1)):
        return power(N.fn(MODULO, (a, b)))
    less = _without_multiples(a, n, facts)
    for form in (a, less):
        p = as_poly(form, facts)
        if p is not None and facts.holds(ge(p)) and facts.holds(ge(n - 1 - p)):
            return form
    if facts.orders and dominated(less, facts):
        return N.minus(less, times(b, toward_zero([less, b], facts), facts))
    return power(N.fn(MODULO, (less, b)))


def _without_multiples(a: NF, n: Poly, facts: Facts) -> NF:
    """Return a form with the same remainder by n: c x for c (x mod m) if n divides c m, without
    multiples of n."""
    out: list[NF] = []
    sizes = [t for t in a.terms if all(isinstance(f, N.Num) for f, _ in t.powers)]
    plain = as_poly(N.form(sizes), facts)
    if plain is not None:
        divided = P.divided if len(n.terms) == 1 else P.divided_by_sum
        out.append(N.number(divided(plain, n)[1]))
    for t in a.terms:
        c = t.coefficient
        if plain is not None and t in sizes:
            continue
        if c.denominator != 1:
            return a
        inner = _only(Term(Fraction(1), t.bound, t.guards, t.powers), MODULO)
        period = None if inner is None else as_poly(inner[1], facts)
        if inner is not None and period is not None and _divides(n, period * int(c), facts):
            out.append(N.scaled(inner[0], c))
            continue
        one = N.form((Term(c, t.bound, t.guards, t.powers),))
        p = as_poly(one, facts)
        multiple = n.value is not None and int(c) % n.value == 0
        if not multiple and (p is None or not _divides(n, p, facts)):
            out.append(one)
    return N.plus(*out)


def _divides(n: Poly, p: Poly, facts: Facts) -> bool:
    return facts.holds(eq(p - n * quotient(p, n, facts)))


def _only(t: Term | None, name: str) -> tuple[NF, NF] | None:
    """Return the arguments of the function `name` if the term is one, else None."""
    if t is None or t.coefficient != 1 or t.bound or t.guards:
        return None
    match t.powers:
        case ((N.Fn(name=found, args=(x, y)), e),) if e == 1 and found == name:
            return x, y
        case _:
            return None


def as_poly(a: NF, facts: Facts) -> Poly | None:
    """Return a form as a polynomial of sizes and indices, None if it is not one."""
    out = P.const(0)
    for t in a.terms:
        if t.bound or t.guards or t.coefficient.denominator != 1:
            return None
        term = P.const(int(t.coefficient))
        for f, e in t.powers:
            one = _whole(f, facts)
            if one is None or e.denominator != 1 or e < 0:
                return None
            for _ in range(int(e)):
                term = term * one
        out = out + term
    return out


def _whole(f: Factor, facts: Facts) -> Poly | None:
    match f:
        case N.Num():
            return P.of(f.atom)
        case N.Fn(name="mod of integers", args=(e, n)):  # as an index; negative: from the end
            bound = as_poly(n, facts)
            return P.chosen(e, bound) if bound is not None and facts.holds(ge(bound - 1)) else None
        case _:
            return None
