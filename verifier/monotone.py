"""Functions that grow strictly, wherever they are defined: exp, roots and the like, and 1 / x of
what is above 0, which falls."""

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
    """The function that grows and is odd, of which `t` is a multiple."""
    (f, e), *more = t.powers
    known = isinstance(f, N.Fn) and f.name in GROW_ODD and len(f.args) == 1
    return f.name if known and isinstance(f, N.Fn) and e == 1 and not more else ""


def argument(t: Term) -> NF:
    """What its only factor is a function of."""
    ((f, _),) = t.powers
    assert isinstance(f, N.Fn)
    return f.args[0]


def quotient(t: Term) -> bool:
    """Is it one of numbers above 0?"""
    plain = Term(Fraction(1), (), frozenset(), t.powers)
    return any(e < 0 for _, e in t.powers) and sign(plain, {}) == 2


def turned(t: Term, facts: Facts) -> NF:
    """1 / t without its coefficient, multiplied out: of exp(x) / (1 + exp(x)), 1 + exp(-x)."""
    out = N.constant(1)
    for f, e in t.powers:
        out = times(out, f.of if isinstance(f, N.Total) else power(f, -e), facts)
    return out
