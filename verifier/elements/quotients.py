"""Quotients of polynomials under facts: p // q for q >= 1, simplified."""

from __future__ import annotations

from collections.abc import Iterable

from superopt.verifier.context import ProofContext
from superopt.verifier.poly import polynomial
from superopt.verifier.poly.facts import Facts, ge, without_hypotheses
from superopt.verifier.poly.polynomial import Monomial, Poly, Quotient


def quotient(p: Poly, q: Poly, facts: Facts | None = None) -> Poly:
    """Return p // q for q >= 1."""
    known = facts or without_hypotheses(p.context)
    if known.equal_products:
        p = _apply_equal_products(p, q, known)
    whole, rest = polynomial.divide(p, q)
    if not rest.terms:
        return whole
    if len(q.terms) > 1:
        more, left = polynomial.divide_by_sum(p, q)
        for beyond in (0, -1, 1) if more.terms else ():  # 2 n is less than 2 n + 2
            own = left - q * beyond
            if known.holds(ge(own)) and known.holds(ge(q - 1 - own)):
                return more + beyond
        if more.vars:
            return more + quotient(left, q, facts)
    if known.holds(ge(rest)) and known.holds(ge(q - 1 - rest)):
        return whole
    if rest.value is not None and rest.value < 0 and known.holds(ge(q + rest)):
        return whole - 1
    same = _known_quotient(rest, q, known)
    if same is not None:
        return whole + same
    inner = _nested_quotient(rest, q, known)
    return whole + (
        polynomial.atom_poly(polynomial.quotient_atom(rest, q)) if inner is None else inner
    )


def _known_quotient(p: Poly, q: Poly, facts: Facts) -> Poly | None:
    """Return p // q as an equal quotient by q that occurs in the facts, else None."""
    for a in facts.quotients:
        left = p - polynomial.atom_poly(a) * q if a.q is q and a.p is not p else None
        if left is not None and facts.holds(ge(left)) and facts.holds(ge(q - 1 - left)):
            return polynomial.atom_poly(a)
    return None


def _apply_equal_products(p: Poly, q: Poly, facts: Facts) -> Poly:
    """Replace products in `p` by equal products that q divides: n * m for a * b before a division
    by m."""
    if len(q.terms) != 1:
        return p
    ((m, c),) = q.terms
    for old, new in facts.equal_products:
        if (
            c == 1
            and polynomial.monomial_divides(m, new)
            and not polynomial.monomial_divides(m, old)
        ):
            p = polynomial.replace_product(p, old, new)
    return p


def canonical_products(p: Poly, facts: Facts) -> Poly:
    """Return `p` with one representative for products that are equal."""
    for old, new in facts.equal_products:
        if _monomial(facts.context, old).number > _monomial(facts.context, new).number:
            p = polynomial.replace_product(p, old, new)
    return p


def _nested_quotient(p: Poly, q: Poly, facts: Facts) -> Poly | None:
    """Simplify (a // b) // c to a // (b c), and (g a + r) // (g b) to (a + r // g) // b."""
    if len(p.terms) == 1:
        ((m, c),) = p.terms
        if c == 1 and len(m) == 1 and isinstance(m[0], Quotient):
            return quotient(m[0].p, m[0].q * q, facts)
    if len(q.terms) != 1:
        return None
    ((qm, qc),) = q.terms
    found: Poly | None = None
    use_solver = facts.context.use_solver
    for g in _proper_factors(facts.context, qm, qc):
        whole, rest = polynomial.divide(p, g)
        if not whole.terms:
            continue
        smaller, none = polynomial.divide(q, g)
        if none.terms or smaller is q:
            continue
        if facts.holds(ge(rest), use_solver) and facts.holds(ge(g - 1 - rest), use_solver):
            return quotient(whole, smaller, facts)
        if found is None and g.value is None:  # a numeric factor would only change the notation
            found = quotient(whole + quotient(rest, g, facts), smaller, facts)
    return found


def _monomial(context: ProofContext, m: Monomial, c: int = 1) -> Poly:
    return polynomial.from_terms(context, {m: c})


def _proper_factors(context: ProofContext, m: Monomial, c: int) -> Iterable[Poly]:
    """Yield the proper factors of a monomial."""
    for k in range(1, 1 << len(m)):
        atoms = tuple(a for n, a in enumerate(m) if k >> n & 1)
        if len(atoms) < len(m) or c != 1:
            yield _monomial(context, atoms)
            yield from (_monomial(context, atoms, d) for d in range(2, c) if c % d == 0)
    if c != 1 and m:
        yield polynomial.const(context, c)
    if not m:
        yield from (polynomial.const(context, d) for d in range(2, c) if c % d == 0)
