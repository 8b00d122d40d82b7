"""Elements in normal form, simplified again under more facts."""

from __future__ import annotations

from fractions import Fraction

from superopt.verifier.elements import normal, substitute
from superopt.verifier.elements.algebra import exponential, hoist_guards, power, reciprocal
from superopt.verifier.elements.comparisons import equals_zero, less_than_zero
from superopt.verifier.elements.index_digits import split_piece_indices
from superopt.verifier.elements.maxima import max_of_pieces
from superopt.verifier.elements.normal import NF, Factor, Piece, Term
from superopt.verifier.elements.order import is_order_implied
from superopt.verifier.elements.products import product_over
from superopt.verifier.elements.scalars import apply_function
from superopt.verifier.elements.simplify import (
    multiply,
    open_piece,
    outer_guard,
    restrict,
    simplify_term,
)
from superopt.verifier.equality.max_matching import absorb_pieces, join_adjacent_pieces
from superopt.verifier.equality.unify import solve_equations, unify_forms
from superopt.verifier.poly.facts import Facts, ge, negate


def refine(a: NF, facts: Facts) -> NF:
    """Return `a` with all its parts simplified again under more facts."""
    memo: dict[object, NF] = {}
    return _refine(a, facts, memo)


def _refine(a: NF, facts: Facts, memo: dict[object, NF]) -> NF:
    key = (a, facts.hypotheses)
    found = memo.get(key)
    if found is None:
        found = memo[key] = normal.add_all(
            facts.context, (_refine_term(t, facts, memo) for t in a.terms)
        )
    return found


def _refine_term(t: Term, facts: Facts, memo: dict[object, NF]) -> NF:
    out: list[Term] = []
    for s in simplify_term(substitute.open_term(t), facts):
        if not any(_has_arguments(f) for f, _ in s.powers):
            out.append(s)
            continue
        u = substitute.open_term(s)
        inner = facts.with_guards(*u.guards)
        product = normal.constant(facts.context, u.coefficient)
        for f, e in u.powers:
            product = multiply(product, _refine_power(f, e, inner, memo), inner)
        for p in product.terms:
            v = substitute.open_term(p)
            out += simplify_term(
                Term(v.coefficient, v.bound + u.bound, v.guards | u.guards, v.powers), facts
            )
    return normal.from_terms(facts.context, out)


def _has_arguments(f: Factor) -> bool:
    return not isinstance(f, (normal.Read, normal.Num))


def _refine_power(f: Factor, e: Fraction, facts: Facts, memo: dict[object, NF]) -> NF:
    base: NF
    exponent = e
    match f:
        case normal.Fn(name="sign" | "sign of integers") if facts.nonneg:
            argument = _refine(f.args[0], facts, memo)
            above, below = (
                _is_less_than_zero(x, facts) for x in (normal.scale(argument, -1), argument)
            )
            base = normal.subtract(above, below)
        case normal.Fn():
            base = apply_function(f.name, [_refine(x, facts, memo) for x in f.args], facts)
        case normal.Exp():
            return hoist_guards(
                [_refine(f.argument, facts, memo)],
                facts,
                lambda args, more: exponential(normal.scale(args[0], e), more),
            )
        case normal.Sum():
            argument = _refine(f.argument, facts, memo)
            if argument is f.argument:
                return power(f, e)
            base = reciprocal(argument, facts)
            exponent = -e
        case normal.Truth():
            argument = _refine(f.argument, facts, memo)
            if f.fn == "is":
                return power(f)
            known = _decide_comparison(f.fn, argument, facts)
            if known is not None:
                return normal.constant(facts.context, int(known))
            return less_than_zero(argument, facts) if f.fn == "lt" else equals_zero(argument, facts)
        case normal.Max():
            base = _max_under_order([_refine_piece(p, facts, memo) for p in f.pieces], facts)
        case normal.Prod():
            p = _refine_piece(f.piece, facts, memo)
            base = product_over(p.value, p.bound, facts, p.guards)
        case _:
            return power(f, e)
    result = _form_power(base, exponent, facts)
    return power(f, e) if result is None else result


def _refine_piece(closed: Piece, facts: Facts, memo: dict[object, NF]) -> Piece:
    p = split_piece_indices(open_piece(closed))
    return Piece(p.bound, p.guards, _refine(p.value, facts.with_guards(*p.guards), memo))


def _form_power(base: NF, e: Fraction, facts: Facts) -> NF | None:
    """Return base ** e, None for a fractional power of a sum."""
    one = base.single_term
    if one is not None:
        if e == 1:
            return base
        if one.coefficient == 1 or e.denominator == 1:
            scale = Fraction(one.coefficient) ** int(e) if e.denominator == 1 else Fraction(1)
            powers = tuple((g, x * e) for g, x in one.powers)
            return normal.from_terms(facts.context, (Term(scale, (), frozenset(), powers),))
    if e.denominator != 1:
        return None
    out = normal.constant(facts.context, 1)
    for _ in range(abs(int(e))):
        out = multiply(out, base, facts)
    return reciprocal(out, facts) if e < 0 else out


def _is_less_than_zero(element: NF, facts: Facts) -> NF:
    """Return 1 where of < 0, else 0, using the order facts."""
    known = _decide_comparison("lt", element, facts)
    return (
        less_than_zero(element, facts)
        if known is None
        else normal.constant(facts.context, int(known))
    )


def _decide_comparison(fn: str, element: NF, facts: Facts) -> bool | None:
    """Return what the order facts imply of "lt" (of < 0) or "eq" (of == 0)."""
    less = normal.scale(element, -1)
    if fn == "lt":
        return (
            False
            if is_order_implied(element, facts)
            else True
            if is_order_implied(less, facts, True)
            else None
        )
    if is_order_implied(element, facts, True) or is_order_implied(less, facts, True):
        return False
    return True if is_order_implied(element, facts) and is_order_implied(less, facts) else None


def _max_under_order(pieces: list[Piece], facts: Facts) -> NF:
    """Return the maximum of open pieces, without pieces that the order facts show to be smaller."""
    for p in pieces:
        g = outer_guard(p.value)
        if g is not None:
            out: list[NF] = []
            for side in (g, negate(g)):
                more = facts.with_guards(side)
                again = [Piece(q.bound, q.guards, refine(q.value, more)) for q in pieces]
                out.append(restrict(_max_under_order(again, more), side, facts))
            return normal.add_all(facts.context, out)
    if facts.nonneg:
        kept = list(pieces)
        n = 0
        while n < len(kept):
            p = kept[n]
            plain = [q for q in kept if q is not p and not q.bound and not q.guards]
            below = (
                not p.guards
                and not p.bound
                and (
                    any(is_order_implied(normal.subtract(q.value, p.value), facts) for q in plain)
                    or any(
                        _has_value_at_least(q, p.value, facts)
                        for q in kept
                        if q is not p and q.bound
                    )
                )
            )
            if below:
                del kept[n]
            else:
                n += 1
        pieces = kept
    return max_of_pieces(absorb_pieces(join_adjacent_pieces(pieces, facts), facts), facts)


def _has_value_at_least(q: Piece, low: NF, facts: Facts) -> bool:
    """True if an order fact shows that one value of an open piece is at least `low`."""
    for o in facts.nonneg:
        assert isinstance(o, NF)
        for equations in unify_forms(q.value, o):
            env = solve_equations(equations, q.bound)
            if env is None:
                continue
            wanted = [substitute.guard_at(g, env) for g in q.guards]
            for u in q.bound:
                wanted += [ge(env[u]), ge(substitute.poly_at(u.extent, env) - 1 - env[u])]
            inside = all(facts.holds(g) for g in wanted)
            if inside and is_order_implied(
                normal.subtract(substitute.form_at(q.value, env), low), facts
            ):
                return True
    return False
