"""Comparisons of an element with 0, in canonical form.

A positive factor does not change a sign, and an increasing function keeps an order:  c x < c y,
exp(x) < exp(y)  and  1 / (1 + exp(-x)) < 1 / (1 + exp(-y))  are  x < y. That holds only for
functions defined on all numbers: an order of two undefined roots says nothing.
"""

from __future__ import annotations

from fractions import Fraction

from superopt.verifier import normal as N
from superopt.verifier.algebra import INFINITY, hoisted, over, power, shared_powers
from superopt.verifier.facts import Facts
from superopt.verifier.monotone import argument, odd_of, quotient, turned
from superopt.verifier.normal import NF, Term
from superopt.verifier.order import factors, sign

EVERYWHERE = frozenset(("erf", "atan", "sinh", "asinh"))


def less(a: NF, facts: Facts) -> NF:
    """Return 1 where a < 0, else 0."""

    def build(args: list[NF], more: Facts) -> NF:
        d = _plain(args[0], more)
        c = d.constant
        if c is not None:
            return N.constant(int(c < 0))
        return power(N.truth("lt", N.scaled(d, 1 / abs(d.terms[0].coefficient))))

    return hoisted([a], facts, build)


def equals(a: NF, facts: Facts) -> NF:
    """Return 1 where a == 0, else 0."""

    def build(args: list[NF], more: Facts) -> NF:
        d = _plain(args[0], more)
        c = d.constant
        if c is not None:
            return N.constant(int(c == 0))
        if sum(_infinite(t) for t in d.terms) == 1:
            return N.zero()
        return power(N.truth("eq", N.scaled(d, 1 / d.terms[0].coefficient)))

    return hoisted([a], facts, build)


def _infinite(t: Term) -> bool:
    return any(isinstance(f, N.Fn) and f.name == INFINITY for f, _ in t.powers)


def _plain(d: NF, facts: Facts) -> NF:
    """Return a simpler form with the same sign as `d`."""
    while d.terms:
        known = factors(facts)
        scale, flipped = [], False
        for p in shared_powers([d], frozenset()):
            own = sign(Term(Fraction(1), (), frozenset(), (p,)), known)
            if own in (2, -2):
                scale.append(p)
                flipped = flipped != (own < 0)
        new = over(d, scale) if scale else d
        new = N.scaled(new, -1) if flipped else new
        new = _difference(new, facts) or new
        if new is d:
            break
        d = new
    return d


def _difference(d: NF, facts: Facts) -> NF | None:
    """Return c (x - y) for c (f(x) - f(y)) of an increasing function f; None for other forms."""
    if len(d.terms) != 2 or any(t.bound or t.guards for t in d.terms):
        return None
    s, t = d.terms
    c, ratio = s.coefficient, -t.coefficient / s.coefficient
    name = odd_of(s) if s.powers else ""
    if name in EVERYWHERE and t.powers and odd_of(t) == name and abs(ratio) == 1:
        return N.scaled(N.minus(argument(s), N.scaled(argument(t), ratio)), c)
    if ratio < 0:
        return None
    if ratio == 1 and all(isinstance(f, N.Exp) for u in (s, t) for f, _ in u.powers):
        x, y = (
            N.plus(*(N.scaled(f.of, e) for f, e in u.powers if isinstance(f, N.Exp)))
            for u in (s, t)
        )
        return N.scaled(N.minus(x, y), c)
    if _over_sums(s) and _over_sums(t):  # 1 / x < r / y is y < r x, of both above 0
        x, y = (turned(u, facts) for u in (s, t))
        return N.scaled(N.minus(y, N.scaled(x, ratio)), c)
    return None


def _over_sums(t: Term) -> bool:
    """True for a multiple of 1, or of 1 / x for an expanded x above 0."""
    sums = [e for f, e in t.powers if isinstance(f, N.Total)]
    return not t.powers or (bool(sums) and all(e == -1 for e in sums) and quotient(t))
