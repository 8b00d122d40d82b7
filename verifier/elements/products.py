"""Products of normal forms over bound variables.

The product over k < n + m of x[k] where k < n, else y[k - n], is the product of x over k < n times
that of y over k < m. A product of a product is split by factors, and a product of exponentials is
the exponential of a sum.
"""

from __future__ import annotations

from superopt.verifier.elements import normal, substitute
from superopt.verifier.elements.algebra import Undefined, exponential, power, split_by_guard
from superopt.verifier.elements.normal import NF, Piece, Term
from superopt.verifier.elements.simplify import (
    multiply,
    normalize_domain,
    open_piece,
    outer_guard,
    restrict,
    simplify_under,
    sum_over,
)
from superopt.verifier.poly.facts import Facts, Guard, negate
from superopt.verifier.poly.polynomial import Var

MAX_GUARD_DEPTH = 8  # nested guards that are split


def product_over(
    a: NF, bound: tuple[Var, ...], facts: Facts, guards: frozenset[Guard] = frozenset()
) -> NF:
    """Return the product of `a` over fresh variables for which the guards hold; 1 if there are
    none."""
    g = outer_guard(a)
    if g is None:
        return _product_over_unguarded(a, bound, guards, facts)
    if g.p.vars.isdisjoint(bound):
        return split_by_guard(
            a, g, facts, lambda part, more: product_over(part, bound, more, guards)
        )
    if len(guards) >= MAX_GUARD_DEPTH:
        raise Undefined("too many parts of a product")
    out = normal.constant(facts.context, 1)
    for side in (g, negate(g)):
        part = simplify_under(a, facts.with_guards(*guards, side))
        out = multiply(out, product_over(part, bound, facts, guards | {side}), facts)
    return out


def _product_over_unguarded(
    a: NF, bound: tuple[Var, ...], guards: frozenset[Guard], facts: Facts
) -> NF:
    """Return the product of a value without outer guards."""
    found = normalize_domain(bound, guards, facts)
    if found is None:
        return normal.constant(facts.context, 1)
    bound, guards, env = found
    a = substitute.form_at(a, env)
    apart = next((g for g in sorted(guards) if g.p.vars.isdisjoint(bound)), None)
    if apart is not None:  # a guard on the outer index
        inner = _product_over_unguarded(a, bound, guards - {apart}, facts.with_guards(apart))
        return normal.add(
            restrict(inner, apart, facts),
            restrict(normal.constant(facts.context, 1), negate(apart), facts),
        )
    if not bound:
        return a
    one = a.single_term
    if one is None or not one.powers:
        return _prod_factor(a, bound, guards)
    out = normal.constant(facts.context, 1)
    if one.coefficient != 1:
        out = _prod_factor(normal.constant(facts.context, one.coefficient), bound, guards)
    for f, e in one.powers:
        if isinstance(f, normal.Exp):
            inside = [
                Term(t.coefficient * e, t.bound, t.guards | guards, t.powers)
                for t in f.argument.terms
            ]
            out = multiply(
                out,
                exponential(
                    sum_over(normal.from_terms(facts.context, inside), bound, facts), facts
                ),
                facts,
            )
        elif isinstance(f, normal.Prod) and e == 1:
            q = open_piece(f.piece)
            inner = product_over(q.value, (*bound, *q.bound), facts, guards | q.guards)
            out = multiply(out, inner, facts)
        else:
            out = multiply(out, _prod_factor(power(f, e), bound, guards), facts)
    return out


def _prod_factor(a: NF, bound: tuple[Var, ...], guards: frozenset[Guard]) -> NF:
    return power(normal.prod(substitute.close_piece(Piece(bound, guards, a))))
