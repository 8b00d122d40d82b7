"""Monotone functions: exp, roots and others, strictly increasing where defined, and 1 / x for
positive x, which is decreasing."""

from __future__ import annotations

from fractions import Fraction

from superopt.verifier.elements import normal
from superopt.verifier.elements.algebra import power
from superopt.verifier.elements.normal import NF, Term
from superopt.verifier.elements.order import sign
from superopt.verifier.elements.simplify import multiply
from superopt.verifier.poly.facts import Facts

INCREASING = frozenset(("sqrt", "log", "softplus", "acosh", "round"))
INCREASING_ODD = frozenset(("erf", "asin", "atan", "sinh", "asinh", "atanh"))


def odd_function_name(t: Term) -> str:
    """Return the name of the odd increasing function of which `t` is a multiple, else ""."""
    (f, e), *more = t.powers
    known = isinstance(f, normal.Fn) and f.name in INCREASING_ODD and len(f.args) == 1
    return f.name if known and isinstance(f, normal.Fn) and e == 1 and not more else ""


def function_argument(t: Term) -> NF:
    """Return the argument of the only factor."""
    ((f, _),) = t.powers
    assert isinstance(f, normal.Fn)
    return f.args[0]


def is_positive_reciprocal(t: Term) -> bool:
    """True for a quotient of positive numbers."""
    plain = Term(Fraction(1), (), frozenset(), t.powers)
    return any(e < 0 for _, e in t.powers) and sign(plain, {}) == 2


def expand_reciprocal(t: Term, facts: Facts) -> NF:
    """Return 1 / t without its coefficient, expanded: 1 + exp(-x) for exp(x) / (1 + exp(x))."""
    out = normal.constant(facts.context, 1)
    for f, e in t.powers:
        out = multiply(out, f.argument if isinstance(f, normal.Sum) else power(f, -e), facts)
    return out
