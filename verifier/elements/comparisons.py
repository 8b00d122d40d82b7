"""Comparisons of an element with 0, in canonical form.

A positive factor does not change a sign, and an increasing function keeps an order:  c x < c y,
exp(x) < exp(y)  and  1 / (1 + exp(-x)) < 1 / (1 + exp(-y))  are  x < y. That holds only for
functions defined on all numbers: an order of two undefined roots says nothing.
"""

from __future__ import annotations

from fractions import Fraction

from superopt.verifier.elements import normal
from superopt.verifier.elements.algebra import (
    INFINITY,
    common_powers,
    divide_by_powers,
    hoist_guards,
    power,
)
from superopt.verifier.elements.monotone import (
    expand_reciprocal,
    function_argument,
    is_positive_reciprocal,
    odd_function_name,
)
from superopt.verifier.elements.normal import NF, Term
from superopt.verifier.elements.order import known_signs, sign
from superopt.verifier.poly.facts import Facts

TOTAL_INCREASING_ODD = frozenset(("erf", "atan", "sinh", "asinh"))


def less_than_zero(a: NF, facts: Facts) -> NF:
    """Return 1 where a < 0, else 0."""

    def build(args: list[NF], more: Facts) -> NF:
        d = _normalize_sign(args[0], more)
        c = d.constant
        if c is not None:
            return normal.constant(facts.context, int(c < 0))
        return power(normal.truth("lt", normal.scale(d, 1 / abs(d.terms[0].coefficient))))

    return hoist_guards([a], facts, build)


def equals_zero(a: NF, facts: Facts) -> NF:
    """Return 1 where a == 0, else 0."""

    def build(args: list[NF], more: Facts) -> NF:
        d = _normalize_sign(args[0], more)
        c = d.constant
        if c is not None:
            return normal.constant(facts.context, int(c == 0))
        if sum(_is_infinite(t) for t in d.terms) == 1:
            return normal.zero(facts.context)
        return power(normal.truth("eq", normal.scale(d, 1 / d.terms[0].coefficient)))

    return hoist_guards([a], facts, build)


def _is_infinite(t: Term) -> bool:
    return any(isinstance(f, normal.Fn) and f.name == INFINITY for f, _ in t.powers)


def _normalize_sign(d: NF, facts: Facts) -> NF:
    """Return a simpler form with the same sign as `d`."""
    while d.terms:
        known = known_signs(facts)
        scale, flipped = [], False
        for p in common_powers([d], frozenset()):
            own = sign(Term(Fraction(1), (), frozenset(), (p,)), known)
            if own in (2, -2):
                scale.append(p)
                flipped = flipped != (own < 0)
        new = divide_by_powers(d, scale) if scale else d
        new = normal.scale(new, -1) if flipped else new
        new = _cancel_monotone(new, facts) or new
        if new is d:
            break
        d = new
    return d


def _cancel_monotone(d: NF, facts: Facts) -> NF | None:
    """Return c (x - y) for c (f(x) - f(y)) of an increasing function f; None for other forms."""
    if len(d.terms) != 2 or any(t.bound or t.guards for t in d.terms):
        return None
    s, t = d.terms
    c, ratio = s.coefficient, -t.coefficient / s.coefficient
    name = odd_function_name(s) if s.powers else ""
    if (
        name in TOTAL_INCREASING_ODD
        and t.powers
        and odd_function_name(t) == name
        and abs(ratio) == 1
    ):
        return normal.scale(
            normal.subtract(function_argument(s), normal.scale(function_argument(t), ratio)), c
        )
    if ratio < 0:
        return None
    if ratio == 1 and all(isinstance(f, normal.Exp) for u in (s, t) for f, _ in u.powers):
        x, y = (
            normal.add_all(
                facts.context,
                (normal.scale(f.argument, e) for f, e in u.powers if isinstance(f, normal.Exp)),
            )
            for u in (s, t)
        )
        return normal.scale(normal.subtract(x, y), c)
    if _is_constant_or_reciprocal(s) and _is_constant_or_reciprocal(
        t
    ):  # 1 / x < r / y is y < r x, of both above 0
        x, y = (expand_reciprocal(u, facts) for u in (s, t))
        return normal.scale(normal.subtract(y, normal.scale(x, ratio)), c)
    return None


def _is_constant_or_reciprocal(t: Term) -> bool:
    """True for a multiple of 1, or of 1 / x for an expanded x above 0."""
    sums = [e for f, e in t.powers if isinstance(f, normal.Sum)]
    return not t.powers or (bool(sums) and all(e == -1 for e in sums) and is_positive_reciprocal(t))
