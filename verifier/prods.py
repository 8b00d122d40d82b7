"""Products of normal forms over bound variables.

The product over k < n + m of x[k] where k < n, else y[k - n], is the product of x over k < n times
that of y over k < m. A product of a product is split by factors, and a product of exponentials is
the exponential of a sum.
"""

from __future__ import annotations

from superopt.verifier import normal as N
from superopt.verifier import substitute as S
from superopt.verifier.algebra import Undefined, exponential, hoisted, power
from superopt.verifier.facts import Facts, Guard, negated
from superopt.verifier.normal import NF, Piece, Term
from superopt.verifier.poly import Var
from superopt.verifier.simplify import (
    opened_piece,
    outer_guard,
    settled,
    summed,
    times,
    under,
    where,
)

MOST_DEEP = 8  # nested guards that are split


def product_over(
    a: NF, bound: tuple[Var, ...], facts: Facts, guards: frozenset[Guard] = frozenset()
) -> NF:
    """Return the product of `a` over fresh variables for which the guards hold; 1 if there are
    none."""
    g = outer_guard(a)
    if g is None:
        return _over(a, bound, guards, facts)
    if g.p.vars.isdisjoint(bound):
        return hoisted([a], facts, lambda args, more: product_over(args[0], bound, more, guards))
    if len(guards) >= MOST_DEEP:
        raise Undefined("too many parts of a product")
    out = N.constant(1)
    for side in (g, negated(g)):
        part = under(a, facts.plus(*guards, side))
        out = times(out, product_over(part, bound, facts, guards | {side}), facts)
    return out


def _over(a: NF, bound: tuple[Var, ...], guards: frozenset[Guard], facts: Facts) -> NF:
    """Return the product of a value without outer guards."""
    found = settled(bound, guards, facts)
    if found is None:
        return N.constant(1)
    bound, guards, env = found
    a = S.form_at(a, env)
    apart = next((g for g in sorted(guards) if g.p.vars.isdisjoint(bound)), None)
    if apart is not None:  # a guard on the outer index
        inner = _over(a, bound, guards - {apart}, facts.plus(apart))
        return N.plus(where(inner, apart, facts), where(N.constant(1), negated(apart), facts))
    if not bound:
        return a
    one = a.single
    if one is None or not one.powers:
        return _prod(a, bound, guards)
    out = N.constant(1)
    if one.coefficient != 1:
        out = _prod(N.constant(one.coefficient), bound, guards)
    for f, e in one.powers:
        if isinstance(f, N.Exp):
            inside = [
                Term(t.coefficient * e, t.bound, t.guards | guards, t.powers) for t in f.of.terms
            ]
            out = times(out, exponential(summed(N.form(inside), bound, facts), facts), facts)
        elif isinstance(f, N.Prod) and e == 1:
            q = opened_piece(f.piece)
            inner = product_over(q.value, (*bound, *q.bound), facts, guards | q.guards)
            out = times(out, inner, facts)
        else:
            out = times(out, _prod(power(f, e), bound, guards), facts)
    return out


def _prod(a: NF, bound: tuple[Var, ...], guards: frozenset[Guard]) -> NF:
    return power(N.prod(S.close_piece(Piece(bound, guards, a))))
