"""Quotients and remainders of integers, given their values."""

from __future__ import annotations

import math
from fractions import Fraction

from superopt.verifier.elements import normal
from superopt.verifier.elements.algebra import power
from superopt.verifier.elements.normal import NF, Factor, Term
from superopt.verifier.elements.order import is_order_implied
from superopt.verifier.elements.quotients import quotient
from superopt.verifier.elements.simplify import multiply
from superopt.verifier.poly import polynomial
from superopt.verifier.poly.facts import Facts, eq, ge
from superopt.verifier.poly.polynomial import Poly

QUOTIENT, MODULO = "div of integers", "mod of integers"


def truncated_quotient(args: list[NF], facts: Facts) -> NF:
    """Return the quotient rounded toward zero. The quotient of a remainder is zero, nested divisors
    multiply, and negation of a negates the quotient."""
    a, b = args
    if b.constant == 1 or not a.terms:
        return a
    if b.constant and a.constant is not None:
        return normal.constant(facts.context, math.trunc(a.constant / b.constant))
    for f in [f for t in a.terms for f, _ in t.powers]:
        if isinstance(f, normal.Fn) and f.name == QUOTIENT and f.args[1] == b:
            left = normal.subtract(f.args[0], multiply(b, power(f), facts))
            if a in (left, normal.scale(left, -1)):
                return normal.zero(facts.context)
    if a.terms[0].coefficient < 0:
        return normal.scale(truncated_quotient([normal.scale(a, -1), b], facts), -1)
    inner = _function_args(a.single_term, QUOTIENT)
    if inner is not None:
        return truncated_quotient([inner[0], multiply(inner[1], b, facts)], facts)
    return power(normal.fn(QUOTIENT, (a, b)))


def floor_remainder(args: list[NF], facts: Facts) -> NF:
    """Return the remainder with the sign of the divisor; it is idempotent. For n > 0 it is a where
    0 <= a < n, and a - n * quotient where 0 <= a."""
    a, b = args
    inner = _function_args(a.single_term, MODULO)
    if inner is not None and inner[1] is b:
        return a
    n = as_poly(b, facts)
    if n is None or not facts.holds(ge(n - 1)):
        return power(normal.fn(MODULO, (a, b)))
    less = _drop_multiples(a, n, facts)
    for form in (a, less):
        p = as_poly(form, facts)
        if p is not None and facts.holds(ge(p)) and facts.holds(ge(n - 1 - p)):
            return form
    if facts.nonneg and is_order_implied(less, facts):
        return normal.subtract(less, multiply(b, truncated_quotient([less, b], facts), facts))
    return power(normal.fn(MODULO, (less, b)))


def _drop_multiples(a: NF, n: Poly, facts: Facts) -> NF:
    """Return a form with the same remainder by n: c x for c (x mod m) if n divides c m, without
    multiples of n."""
    out: list[NF] = []
    sizes = [t for t in a.terms if all(isinstance(f, normal.Num) for f, _ in t.powers)]
    plain = as_poly(normal.from_terms(facts.context, sizes), facts)
    if plain is not None:
        divided = polynomial.divide if len(n.terms) == 1 else polynomial.divide_by_sum
        out.append(normal.from_poly(divided(plain, n)[1]))
    for t in a.terms:
        c = t.coefficient
        if plain is not None and t in sizes:
            continue
        if c.denominator != 1:
            return a
        inner = _function_args(Term(Fraction(1), t.bound, t.guards, t.powers), MODULO)
        period = None if inner is None else as_poly(inner[1], facts)
        if inner is not None and period is not None and _divides(n, period * int(c), facts):
            out.append(normal.scale(inner[0], c))
            continue
        one = normal.from_terms(facts.context, (Term(c, t.bound, t.guards, t.powers),))
        p = as_poly(one, facts)
        multiple = n.value is not None and int(c) % n.value == 0
        if not multiple and (p is None or not _divides(n, p, facts)):
            out.append(one)
    return normal.add_all(facts.context, out)


def _divides(n: Poly, p: Poly, facts: Facts) -> bool:
    return facts.holds(eq(p - n * quotient(p, n, facts)))


def _function_args(t: Term | None, name: str) -> tuple[NF, NF] | None:
    """Return the arguments of the function `name` if the term is one, else None."""
    if t is None or t.coefficient != 1 or t.bound or t.guards:
        return None
    match t.powers:
        case ((normal.Fn(name=found, args=(x, y)), e),) if e == 1 and found == name:
            return x, y
        case _:
            return None


def as_poly(a: NF, facts: Facts) -> Poly | None:
    """Return a form as a polynomial of sizes and indices, None if it is not one."""
    out = polynomial.const(facts.context, 0)
    for t in a.terms:
        if t.bound or t.guards or t.coefficient.denominator != 1:
            return None
        term = polynomial.const(facts.context, int(t.coefficient))
        for f, e in t.powers:
            one = _factor_poly(f, facts)
            if one is None or e.denominator != 1 or e < 0:
                return None
            for _ in range(int(e)):
                term = term * one
        out = out + term
    return out


def _factor_poly(f: Factor, facts: Facts) -> Poly | None:
    match f:
        case normal.Num():
            return polynomial.atom_poly(f.atom)
        case normal.Fn(name="mod of integers", args=(e, n)):  # as an index; negative: from the end
            bound = as_poly(n, facts)
            return (
                polynomial.element_index(e, bound)
                if bound is not None and facts.holds(ge(bound - 1))
                else None
            )
        case _:
            return None
