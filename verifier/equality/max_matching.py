"""Maxima that are equal by unification.

max over v where A(v) of f(v)  and  max over u where B(u) of g(u)  are equal if each value of one is
a value of the other. Pieces over adjacent ranges are joined.
"""

from __future__ import annotations

from itertools import islice

from superopt.verifier.elements import normal, substitute
from superopt.verifier.elements.normal import NF, Max, Piece, Term
from superopt.verifier.elements.simplify import open_piece
from superopt.verifier.equality.sum_matching import are_polys_equal
from superopt.verifier.equality.unify import MAX_PAIRINGS, solve_equations, unify_forms
from superopt.verifier.poly.facts import Facts, ge
from superopt.verifier.poly.polynomial import Poly, Var, atom_poly, const, fresh_var


def cancel_equal_maxima(d: NF, facts: Facts) -> NF:
    """Return `d` without pairs of terms that are opposite up to equal maxima."""
    terms = list(d.terms)
    for a in d.terms:
        for b in d.terms:
            if (
                a in terms
                and b in terms
                and a.coefficient == -b.coefficient
                and _differ_in_equal_maxima(a, b, facts)
            ):
                terms.remove(a)
                terms.remove(b)
    return d if len(terms) == len(d.terms) else normal.from_terms(facts.context, terms)


def _differ_in_equal_maxima(a: Term, b: Term, facts: Facts) -> bool:
    """True if two terms differ only in one maximum each, and these are equal."""
    if a.bound or b.bound or a.guards != b.guards:
        return False
    (left, right) = ([p for p in s.powers if p not in t.powers] for s, t in ((a, b), (b, a)))
    match left, right:
        case [(Max() as f, e)], [(Max() as g, x)] if e == x:
            return _are_maxima_equal(f, g, facts.with_guards(*a.guards))
        case _:
            return False


def _are_maxima_equal(f: Max, g: Max, facts: Facts) -> bool:
    """True if each value of either maximum is a value of the other."""
    return all(
        any(_is_covered_by(p, q, facts) for q in t.pieces)
        for s, t in ((f, g), (g, f))
        for p in s.pieces
    )


def absorb_pieces(pieces: list[Piece], facts: Facts) -> list[Piece]:
    """Return open pieces without those whose values are all values of another piece."""
    kept = list(pieces)
    n = 0
    while n < len(kept):
        if any(_is_covered_by(kept[n], q, facts) for q in kept if q is not kept[n]):
            del kept[n]
        else:
            n += 1
    return kept


def join_adjacent_pieces(pieces: list[Piece], facts: Facts) -> list[Piece]:
    """Return open pieces with pieces over adjacent ranges joined."""
    kept = list(pieces)
    for p in pieces:
        for q in kept:
            both = None if p is q or p not in kept else _join_adjacent(p, q, facts)
            if both is not None:
                kept = [both if r is p else r for r in kept if r is not q]
                return join_adjacent_pieces(kept, facts)
    return kept


def _join_adjacent(p: Piece, q: Piece, facts: Facts) -> Piece | None:
    """Return the piece over both ranges of a variable, if q continues where p ends, or is the value
    at the end or before the start of p."""
    other = substitute.close_piece(q)
    for v in p.bound:
        rest = tuple(u for u in p.bound if u is not v)
        inside = any(v in g.p.vars for g in p.guards) or any(v in u.extent.vars for u in rest)
        if inside or v.extent.vars or not facts.holds(ge(v.extent)):  # the range may be empty
            continue
        for w in q.bound:
            u = fresh_var(w.extent)
            on = substitute.close_piece(_substitute_var(p, v, atom_poly(u) + v.extent, (*rest, u)))
            if on == other and facts.holds(ge(w.extent)):
                longer = fresh_var(v.extent + w.extent)
                return _substitute_var(p, v, atom_poly(longer), (*rest, longer))
        longer = fresh_var(v.extent + 1)
        for end, shift in ((v.extent, 0), (const(facts.context, -1), 1)):
            if substitute.close_piece(_substitute_var(p, v, end, rest)) == other:
                return _substitute_var(p, v, atom_poly(longer) - shift, (*rest, longer))
    return None


def _substitute_var(p: Piece, v: Var, value: Poly, bound: tuple[Var, ...]) -> Piece:
    return Piece(bound, p.guards, substitute.form_at(p.value, {v: value}))


def _is_covered_by(p: Piece, q: Piece, facts: Facts) -> bool:
    """True if each value of p is a value of q."""
    if len(p.value.terms) != len(q.value.terms):
        return False
    p, q = open_piece(p), open_piece(q)
    inside = facts.with_guards(*p.guards)
    for equations in islice(unify_forms(q.value, p.value), MAX_PAIRINGS):
        env = solve_equations(equations, q.bound, any_solution=True)
        if env is None:
            continue
        wanted = [substitute.guard_at(g, env) for g in q.guards]
        for u in q.bound:
            wanted += [ge(env[u]), ge(substitute.poly_at(u.extent, env) - 1 - env[u])]
        if not all(inside.holds(g) for g in wanted):
            continue
        if all(are_polys_equal(substitute.poly_at(a, env), b, inside) for a, b in equations):
            return True
    return False
