"""Sums that cancel by a bijection between their domains.

For  sum over v where A(v) of f(v)  and  sum over u where B(u) of g(u)  unification gives maps phi:
v -> u and psi: u -> v. If A(v) implies B(phi(v)), and conversely, psi(phi(v)) = v, phi(psi(u)) = u
and f(v) = g(phi(v)), the sums are equal.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import islice

from superopt.verifier.elements import normal, substitute
from superopt.verifier.elements.algebra import factor_out
from superopt.verifier.elements.normal import NF, Term
from superopt.verifier.elements.simplify import simplify_term
from superopt.verifier.equality.unify import MAX_PAIRINGS, solve_equations, unify_powers
from superopt.verifier.equality.unroll import unroll
from superopt.verifier.poly.facts import Facts, Guard, eq, ge, negate
from superopt.verifier.poly.polynomial import Poly, Var, atom_poly, fresh_var, linear_coefficients


def cancel_equal_sums(d: NF, facts: Facts) -> NF:
    """Return `d` without pairs of opposite terms; the same object if there are none."""
    terms = list(d.terms)
    changed = False
    n = 0
    while n < len(terms):
        for k in range(n + 1, len(terms)):
            a, b = terms[n], terms[k]
            if a.coefficient == -b.coefficient and are_sums_equal(a, b, facts):
                del terms[k], terms[n]
                changed = True
                facts.context.steps.add("reorder sums")
                break
        else:
            n += 1
    rest = normal.from_terms(facts.context, terms) if changed else d
    return _cancel_own_sums(rest if changed else _cancel_partial_sum(d, facts), facts)


def _cancel_partial_sum(d: NF, facts: Facts) -> NF:
    """Return `d` without a term that cancels part of another sum, whose rest remains."""
    for a in d.terms:
        for b in d.terms:
            if a is b or a.coefficient != -b.coefficient:
                continue
            rest = _remaining_terms(a, b, facts)
            if rest is not None:
                facts.context.steps.add("split sums")
                return normal.add(
                    normal.from_terms(d.context, (t for t in d.terms if t is not a and t is not b)),
                    normal.from_terms(facts.context, rest),
                )
    return d


def _remaining_terms(whole: Term, part: Term, facts: Facts) -> list[Term] | None:
    """Return the rest of a sum without a sum over part of its domain, as closed terms."""
    if len(whole.powers) != len(part.powers) or not (whole.bound and part.bound):
        return None
    s, t = substitute.open_term(part), substitute.open_term(whole)
    for equations in islice(unify_powers(t.powers, s.powers), MAX_PAIRINGS):
        phi = solve_equations(equations, t.bound)
        psi = None if phi is None else solve_equations(tuple((q, p) for p, q in equations), s.bound)
        if phi is None or psi is None or not _is_mapped_by(s, t, phi, facts):
            continue
        if not _is_left_inverse(phi, psi, s, facts):
            continue
        facts.context.matched_sums += 1
        # t restricted to the image of phi: v = psi(u) is in the domain of s, and phi(v) is u
        here = [substitute.guard_at(g, psi) for g in sorted(s.guards)]
        for v in s.bound:
            here += [ge(psi[v]), ge(substitute.poly_at(v.extent, psi) - 1 - psi[v])]
        here += [eq(substitute.poly_at(phi[u], psi) - atom_poly(u)) for u in t.bound]
        out: list[Term] = []
        known = t.guards
        for g in here:
            if facts.with_guards(*known).holds(g):
                continue
            out += simplify_term(Term(t.coefficient, t.bound, known | {negate(g)}, t.powers), facts)
            known |= {g}
        return out
    return None


def are_sums_equal(a: Term, b: Term, facts: Facts) -> bool:
    """True if two sums are equal up to the sign of their coefficients."""
    if len(a.powers) != len(b.powers) or not (a.bound and b.bound):
        return False
    s, t = substitute.open_term(a), substitute.open_term(b)
    for equations in islice(unify_powers(t.powers, s.powers), MAX_PAIRINGS):
        phi = solve_equations(equations, t.bound)
        if phi is None:
            continue
        psi = solve_equations(tuple((q, p) for p, q in equations), s.bound)
        if psi is None:
            continue
        both = _is_mapped_by(s, t, phi, facts) and _is_mapped_by(t, s, psi, facts)
        if both and _is_left_inverse(phi, psi, s, facts) and _is_left_inverse(psi, phi, t, facts):
            facts.context.matched_sums += 1
            return True
    return False


def _is_mapped_by(s: Term, t: Term, phi: dict[Var, Poly], facts: Facts) -> bool:
    """True if the summand of s at each v of its domain is that of t at phi(v), in the domain of
    t."""
    inside = facts.with_guards(*s.guards)
    wanted: list[Guard] = [substitute.guard_at(g, phi) for g in t.guards]
    for u in t.bound:
        wanted += [ge(phi[u]), ge(substitute.poly_at(u.extent, phi) - 1 - phi[u])]
    if not all(inside.holds(g) for g in wanted):
        return False
    return _are_powers_equal(substitute.powers_at(t.powers, phi), s.powers, inside)


def _are_powers_equal(
    a: tuple[normal.Power, ...], b: tuple[normal.Power, ...], facts: Facts
) -> bool:
    if a == b:
        return True
    for equations in islice(unify_powers(a, b), MAX_PAIRINGS):
        if all(are_polys_equal(p, q, facts) for p, q in equations):
            return True
    return False


def are_polys_equal(p: Poly, q: Poly, facts: Facts) -> bool:
    return p is q or (facts.holds(ge(p - q)) and facts.holds(ge(q - p)))


def _is_left_inverse(phi: dict[Var, Poly], psi: dict[Var, Poly], s: Term, facts: Facts) -> bool:
    """True if psi(phi(v)) = v."""
    inside = facts.with_guards(*s.guards)
    return all(
        are_polys_equal(substitute.poly_at(psi[v], phi), atom_poly(v), inside) for v in s.bound
    )


# --- sums inside sums -----------------------------------------------------------------------------


def _cancel_own_sums(d: NF, facts: Facts) -> NF:
    """Replace sum over u, v of f(u) g(u, v) / (sum over v of g(u, v)) by the sum over u of f(u)."""
    out: list[Term] = []
    changed = False
    for t in d.terms:
        new = _cancel_own_sum(t, facts)
        changed = changed or new is not None
        out += [t] if new is None else new
    return normal.from_terms(facts.context, out) if changed else d


def _cancel_own_sum(t: Term, facts: Facts) -> list[Term] | None:
    if not t.bound or not any(isinstance(f, normal.Sum) and e < 0 for f, e in t.powers):
        return None
    u = substitute.open_term(t)
    return _cancel_sum(u, facts) or _cancel_sum(_shear(u), facts)


def _shear(u: Term) -> Term:
    """Substitute w = p + o for p, if w is in the range of p: the sum over p < n and o where 0 <= p
    + o < n is that over w < n and o where 0 <= w - o < n."""
    for g in sorted(u.guards):
        for v in (v for v in u.bound if g.kind == "ge"):
            split = linear_coefficients(g.p, v)
            if split is None or split[0].value != 1 or not any(w in split[1].vars for w in u.bound):
                continue
            other = ge(v.extent - 1 - g.p)
            if other not in u.guards or any(v in w.extent.vars for w in u.bound):
                continue
            w = fresh_var(v.extent)
            env = {v: atom_poly(w) - split[1]}
            guards = {substitute.guard_at(h, env) for h in u.guards - {g, other}}
            guards |= {ge(env[v]), ge(v.extent - 1 - env[v])}
            powers_ = substitute.powers_at(u.powers, env)
            if sum(len(f.free_vars) for f, _ in powers_) < sum(
                len(f.free_vars) for f, _ in u.powers
            ):
                bound = tuple(w if b is v else b for b in u.bound)
                return _shear(Term(u.coefficient, bound, frozenset(guards), powers_))
    return u


def _cancel_sum(u: Term, facts: Facts) -> list[Term] | None:
    for f, e in u.powers:
        if not isinstance(f, normal.Sum) or e >= 0:
            continue
        apart = frozenset(v for v in u.bound if v not in f.free_vars)
        counted = apart.difference(*(g.free_vars for g, _ in u.powers))
        for inner in dict.fromkeys((apart, counted)):
            found = _sum_out(u, f, e, inner, facts) if inner else None
            if found is not None:
                return found
    return None


def _sum_out(
    u: Term, f: normal.Sum, e: Fraction, inner: frozenset[Var], facts: Facts
) -> list[Term] | None:
    """Return the term without its sum over `inner`, if that equals the sum f, which it has to power
    e."""
    if any(v.extent.vars & inner for v in u.bound):
        return None
    own = [(g, x) for g, x in u.powers if not g.free_vars.isdisjoint(inner)]
    guards = frozenset(g for g in u.guards if not g.p.vars.isdisjoint(inner))
    bound = tuple(v for v in u.bound if v in inner)
    closed = substitute.close(Term(Fraction(1), bound, guards, tuple(own)))
    one = normal.from_terms(facts.context, (closed,))
    content, rest = factor_out(one)
    if rest is not f.argument and unroll(normal.subtract(rest, f.argument), facts).terms:
        return None
    left = [(g, x) for g, x in u.powers if g.free_vars.isdisjoint(inner) and g is not f]
    left += [(f, e + 1)] if e + 1 else []
    merged = normal.merge_powers(left, content.powers)
    assert merged is not None
    facts.context.steps.add("clear denominators")
    return simplify_term(
        Term(
            u.coefficient * content.coefficient,
            tuple(v for v in u.bound if v not in inner),
            u.guards - guards,
            merged,
        ),
        facts,
    )
