"""Monotone functions: exp, roots and others, strictly increasing where defined, and 1 / x for
positive x, which is decreasing."""

from __future__ import annotations

from fractions import Fraction

from superopt.verifier import normal as N
from superopt.verifier.algebra import power
from superopt.verifier.facts import Facts
from superopt.verifier.normal import NF, Term
from superopt.verifier.order import sign
from superopt.verifier.simplify import times

GROW = frozenset(("sqrt", "log", "softplus", "acosh"))
GROW_ODD = frozenset(("erf", "asin", "atan", "sinh", "asinh", "atanh"))


def odd_of(t: Term) -> str:
    """Return the name of the odd increasing function of which `t` is a multiple, else ""."""
    (f, e), *more = t.powers
    known = isinstance(f, N.Fn) and f.name in GROW_ODD and len(f.args) == 1
    return f.name if known and isinstance(f, N.Fn) and e == 1 and not more else ""


def argument(t: Term) -> NF:
    """Return the argument of the only factor."""
    ((f, _),) = t.powers
    assert isinstance(f, N.Fn)
    return f.args[0]


def quotient(t: Term) -> bool:
    """True for a quotient of positive numbers."""
    plain = Term(Fraction(1), (), frozenset(), t.powers)
    return any(e < 0 for _, e in t.powers) and sign(plain, {}) == 2


def turned(t: Term, facts: Facts) -> NF:
    """Return 1 / t without its coefficient, expanded: 1 + exp(-x) for exp(x) / (1 + exp(x))."""
    out = N.constant(1)
    for f, e in t.powers:
        out = times(out, f.of if isinstance(f, N.Total) else power(f, -e), facts)
    return out
