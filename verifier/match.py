"""Sums that cancel by a bijection between their domains.

For  sum over v where A(v) of f(v)  and  sum over u where B(u) of g(u)  unification gives maps phi:
v -> u and psi: u -> v. If A(v) implies B(phi(v)), and conversely, psi(phi(v)) = v, phi(psi(u)) = u
and f(v) = g(phi(v)), the sums are equal.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import islice

from superopt.verifier import guard as G
from superopt.verifier import normal as N
from superopt.verifier import substitute as S
from superopt.verifier.algebra import factored, used
from superopt.verifier.facts import Facts, Guard, eq, ge, negated
from superopt.verifier.normal import NF, Term
from superopt.verifier.poly import Poly, Var, fresh, linear_in, of
from superopt.verifier.simplify import simplified
from superopt.verifier.unify import MOST_WAYS, powers, solved
from superopt.verifier.unroll import unrolled


def cancelled(d: NF, facts: Facts) -> NF:
    """Return `d` without pairs of opposite terms; the same object if there are none."""
    terms = list(d.terms)
    changed = False
    n = 0
    while n < len(terms):
        for k in range(n + 1, len(terms)):
            a, b = terms[n], terms[k]
            if a.coefficient == -b.coefficient and same_sum(a, b, facts):
                del terms[k], terms[n]
                changed = True
                used("reorder sums")
                break
        else:
            n += 1
    rest = N.form(terms) if changed else d
    return _cancelled_inside(rest if changed else _without_part(d, facts), facts)


def _without_part(d: NF, facts: Facts) -> NF:
    """Return `d` without a term that cancels part of another sum, whose rest remains."""
    for a in d.terms:
        for b in d.terms:
            if a is b or a.coefficient != -b.coefficient:
                continue
            rest = _rest(a, b, facts)
            if rest is not None:
                used("split sums")
                return N.plus(N.form(t for t in d.terms if t is not a and t is not b), N.form(rest))
    return d


def _rest(whole: Term, part: Term, facts: Facts) -> list[Term] | None:
    """Return the rest of a sum without a sum over part of its domain, as closed terms."""
    if len(whole.powers) != len(part.powers) or not (whole.bound and part.bound):
        return None
    s, t = S.opened(part), S.opened(whole)
    for equations in islice(powers(t.powers, s.powers), MOST_WAYS):
        phi = solved(equations, t.bound)
        psi = None if phi is None else solved(tuple((q, p) for p, q in equations), s.bound)
        if phi is None or psi is None or not _maps(s, t, phi, facts):
            continue
        if not _inverse(phi, psi, s, facts):
            continue
        G.TALLY.matched += 1
        # t restricted to the image of phi: v = psi(u) is in the domain of s, and phi(v) is u
        here = [S.guard_at(g, psi) for g in sorted(s.guards)]
        for v in s.bound:
            here += [ge(psi[v]), ge(S.poly_at(v.extent, psi) - 1 - psi[v])]
        here += [eq(S.poly_at(phi[u], psi) - of(u)) for u in t.bound]
        out: list[Term] = []
        known = t.guards
        for g in here:
            if facts.plus(*known).holds(g):
                continue
            out += simplified(Term(t.coefficient, t.bound, known | {negated(g)}, t.powers), facts)
            known |= {g}
        return out
    return None


def same_sum(a: Term, b: Term, facts: Facts) -> bool:
    """True if two sums are equal up to the sign of their coefficients."""
    if len(a.powers) != len(b.powers) or not (a.bound and b.bound):
        return False
    s, t = S.opened(a), S.opened(b)
    for equations in islice(powers(t.powers, s.powers), MOST_WAYS):
        phi = solved(equations, t.bound)
        if phi is None:
            continue
        psi = solved(tuple((q, p) for p, q in equations), s.bound)
        if psi is None:
            continue
        both = _maps(s, t, phi, facts) and _maps(t, s, psi, facts)
        if both and _inverse(phi, psi, s, facts) and _inverse(psi, phi, t, facts):
            G.TALLY.matched += 1
            return True
    return False


def _maps(s: Term, t: Term, phi: dict[Var, Poly], facts: Facts) -> bool:
    """True if the summand of s at each v of its domain is that of t at phi(v), in the domain of
    t."""
    inside = facts.plus(*s.guards)
    wanted: list[Guard] = [S.guard_at(g, phi) for g in t.guards]
    for u in t.bound:
        wanted += [ge(phi[u]), ge(S.poly_at(u.extent, phi) - 1 - phi[u])]
    if not all(inside.holds(g) for g in wanted):
        return False
    return _same_powers(S.powers_at(t.powers, phi), s.powers, inside)


def _same_powers(a: tuple[N.Power, ...], b: tuple[N.Power, ...], facts: Facts) -> bool:
    if a == b:
        return True
    for equations in islice(powers(a, b), MOST_WAYS):
        if all(same(p, q, facts) for p, q in equations):
            return True
    return False


def same(p: Poly, q: Poly, facts: Facts) -> bool:
    return p is q or (facts.holds(ge(p - q)) and facts.holds(ge(q - p)))


def _inverse(phi: dict[Var, Poly], psi: dict[Var, Poly], s: Term, facts: Facts) -> bool:
    """True if psi(phi(v)) = v."""
    inside = facts.plus(*s.guards)
    return all(same(S.poly_at(psi[v], phi), of(v), inside) for v in s.bound)


# --- sums inside sums -----------------------------------------------------------------------------


def _cancelled_inside(d: NF, facts: Facts) -> NF:
    """Replace sum over u, v of f(u) g(u, v) / (sum over v of g(u, v)) by the sum over u of f(u)."""
    out: list[Term] = []
    changed = False
    for t in d.terms:
        new = _without_own_sum(t, facts)
        changed = changed or new is not None
        out += [t] if new is None else new
    return N.form(out) if changed else d


def _without_own_sum(t: Term, facts: Facts) -> list[Term] | None:
    if not t.bound or not any(isinstance(f, N.Total) and e < 0 for f, e in t.powers):
        return None
    u = S.opened(t)
    return _without_sum(u, facts) or _without_sum(_sheared(u), facts)


def _sheared(u: Term) -> Term:
    """Substitute w = p + o for p, if w is in the range of p: the sum over p < n and o where 0 <= p
    + o < n is that over w < n and o where 0 <= w - o < n."""
    for g in sorted(u.guards):
        for v in (v for v in u.bound if g.kind == "ge"):
            split = linear_in(g.p, v)
            if split is None or split[0].value != 1 or not any(w in split[1].vars for w in u.bound):
                continue
            other = ge(v.extent - 1 - g.p)
            if other not in u.guards or any(v in w.extent.vars for w in u.bound):
                continue
            w = fresh(v.extent)
            env = {v: of(w) - split[1]}
            guards = {S.guard_at(h, env) for h in u.guards - {g, other}}
            guards |= {ge(env[v]), ge(v.extent - 1 - env[v])}
            powers_ = S.powers_at(u.powers, env)
            if sum(len(f.free) for f, _ in powers_) < sum(len(f.free) for f, _ in u.powers):
                bound = tuple(w if b is v else b for b in u.bound)
                return _sheared(Term(u.coefficient, bound, frozenset(guards), powers_))
    return u


def _without_sum(u: Term, facts: Facts) -> list[Term] | None:
    for f, e in u.powers:
        if not isinstance(f, N.Total) or e >= 0:
            continue
        apart = frozenset(v for v in u.bound if v not in f.free)
        counted = apart.difference(*(g.free for g, _ in u.powers))
        for inner in dict.fromkeys((apart, counted)):
            found = _summed_out(u, f, e, inner, facts) if inner else None
            if found is not None:
                return found
    return None


def _summed_out(
    u: Term, f: N.Total, e: Fraction, inner: frozenset[Var], facts: Facts
) -> list[Term] | None:
    """Return the term without its sum over `inner`, if that equals the sum f, which it has to power
    e."""
    if any(v.extent.vars & inner for v in u.bound):
        return None
    own = [(g, x) for g, x in u.powers if not g.free.isdisjoint(inner)]
    guards = frozenset(g for g in u.guards if not g.p.vars.isdisjoint(inner))
    bound = tuple(v for v in u.bound if v in inner)
    one = N.form((S.close(Term(Fraction(1), bound, guards, tuple(own))),))
    content, rest = factored(one)
    if rest is not f.of and unrolled(N.minus(rest, f.of), facts).terms:
        return None
    left = [(g, x) for g, x in u.powers if g.free.isdisjoint(inner) and g is not f]
    left += [(f, e + 1)] if e + 1 else []
    merged = N.merged(left, content.powers)
    assert merged is not None
    used("clear denominators")
    return simplified(
        Term(
            u.coefficient * content.coefficient,
            tuple(v for v in u.bound if v not in inner),
            u.guards - guards,
            merged,
        ),
        facts,
    )
