"""Functions of indices, which are mathematical integers."""

from __future__ import annotations

from superopt.verifier.elements.quotients import canonical_products, quotient
from superopt.verifier.poly import polynomial
from superopt.verifier.poly.bounds import is_nonnegative
from superopt.verifier.poly.facts import Facts, Guard, ge
from superopt.verifier.poly.polynomial import Poly


class Unreadable(Exception):
    """An expression has no normal form here."""


def index_function(fn: str, operands: list[Poly], facts: Facts) -> Poly:
    """Return a function of indices; a divisor is at least 1."""
    out = operands[0]
    match fn:
        case "add":
            for p in operands[1:]:
                out = out + p
        case "mul":
            for p in operands[1:]:
                out = out * p
        case "floordiv":
            out = quotient(out, operands[1], facts)
        case "mod":
            whole = quotient(out, operands[1], facts)
            out = canonical_products(out - operands[1] * whole, facts)
        case "min":
            out = _minimum(out, operands[1], facts)
        case "max":
            out = -_minimum(-out, -operands[1], facts)
        case _:
            raise Unreadable(f"{fn} of indices")
    return out


def tighten_equality(g: Guard) -> Guard:
    """Replace p == 0 by p >= 0 if p is never above 0: a zero remainder has one form."""
    if g.kind == "eq":
        for p in (g.p, -g.p):
            if is_nonnegative(-p):
                return ge(p)
    return g


def _minimum(p: Poly, q: Poly, facts: Facts) -> Poly:
    if facts.holds(ge(q - p)):
        return p
    if facts.holds(ge(p - q)):
        return q
    return polynomial.minimum(p, q)
