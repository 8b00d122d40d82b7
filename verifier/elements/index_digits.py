"""Indices split into quotient and remainder: i // n becomes k for i = n * k + r. Applies to output
indices and to bound variables."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from itertools import chain

from superopt.verifier.context import ProofContext
from superopt.verifier.elements import normal, substitute
from superopt.verifier.elements.normal import NF, Piece, Term
from superopt.verifier.poly.bounds import lower_bound
from superopt.verifier.poly.facts import Facts, Guard, ge
from superopt.verifier.poly.polynomial import (
    Min,
    Poly,
    Quotient,
    Var,
    atom_poly,
    const,
    divide,
    fresh_var,
    linear_coefficients,
)

MAX_CASE_VALUES = 6


def split_output_index(d: NF) -> tuple[Var, Poly, tuple[Guard, ...]] | None:
    """Return v = q * a + b for a variable v whose quotient v // q is read, if q divides its
    extent."""
    for v in sorted(d.vars, key=lambda v: v.number):
        both = _split_index(v, substitute.polynomials(d), "i")
        if both is not None:
            digits, digit = both
            return v, atom_poly(digits) * digit.extent + atom_poly(digit), ()
    return None


def _split_index(v: Var, polys: Iterable[Poly], name: str) -> tuple[Var, Var] | None:
    """Return a < n and b < q for v < n * q whose quotient v // q is read. v = a * q + b is a
    bijection."""
    for q in sorted(_divisors(polys, v), key=lambda q: q.number):
        whole, rest = divide(v.extent, q)
        if not rest.terms and whole.value != 1 and whole.terms:
            return fresh_var(whole, name), fresh_var(q, name)
    return None


def split_sum_indices(d: NF) -> NF:
    """Return the form with sums over a and b in place of sums over v = q * a + b, if v // q is read
    and q divides the extent of v. The same object if there are none."""
    terms = [_split_term_indices(t, d.context) for t in d.terms]
    if all(new is t for new, t in zip(terms, d.terms, strict=True)):
        return d
    closed = (
        t if new is t else substitute.close(new) for new, t in zip(terms, d.terms, strict=True)
    )
    return normal.from_terms(d.context, closed)


def _split_term_indices(closed: Term, context: ProofContext) -> Term:
    """Split the indices of a term; an open term if it changed."""
    t = substitute.open_term(closed)
    found = _split_bound_vars(
        t.bound, normal.from_terms(context, [Term(t.coefficient, (), t.guards, t.powers)])
    )
    if found is None:
        return closed
    bound, env = found
    guards = frozenset(substitute.guard_at(g, env) for g in t.guards)
    return Term(t.coefficient, bound, guards, substitute.powers_at(t.powers, env))


def split_piece_indices(p: Piece) -> Piece:
    """Split the indices of an open piece: a maximum or product ranges over both parts."""
    guarded = normal.from_terms(p.value.context, [Term(Fraction(1), (), p.guards, ())])
    found = _split_bound_vars(p.bound, p.value, guarded)
    if found is None:
        return p
    bound, env = found
    return Piece(
        bound,
        frozenset(substitute.guard_at(g, env) for g in p.guards),
        substitute.form_at(p.value, env),
    )


def _split_bound_vars(
    bound: tuple[Var, ...], *inside: NF
) -> tuple[tuple[Var, ...], dict[Var, Poly]] | None:
    """Return bound variables with one of them split in two, and the value of that one."""
    own = frozenset(bound)
    for n, v in enumerate(bound):
        if any(v in w.extent.vars for w in bound) or v.extent.vars & own:
            continue
        both = _split_index(v, chain.from_iterable(map(substitute.polynomials, inside)), "k")
        if both is not None and not any(w.extent.vars & own for w in both):
            digits, digit = both
            return (*bound[:n], *both, *bound[n + 1 :]), {
                v: atom_poly(digits) * digit.extent + atom_poly(digit)
            }
    return None


def split_bound_indices(bound: tuple[Var, ...], a: NF) -> tuple[tuple[Var, ...], NF]:
    """Split the fresh variables whose quotients are read, and return them with the summand: a sum
    over a flattened axis becomes a sum over the original axes."""
    while (found := _split_bound_vars(bound, a)) is not None:
        bound, env = found
        a = substitute.form_at(a, env)
    return bound, a


def remainder_cases(d: NF, facts: Facts) -> list[tuple[Var, Poly, tuple[Guard, ...]]] | None:
    """Replace p // n for a number n by k, where p = n * k + r, in one case for each remainder r."""
    for a in sorted(_quotients(d), key=lambda a: a.number):
        n = a.q.value
        if n is None or n > MAX_CASE_VALUES or not a.p.vars <= d.vars:
            continue
        for v in sorted(a.p.vars, key=lambda v: -v.number):
            split = linear_coefficients(a.p, v)
            low = lower_bound(-a.p)
            if split is None or split[0].value not in (1, -1) or low is None:
                continue
            if not facts.holds(ge(a.p)):
                continue
            whole = atom_poly(fresh_var(const(facts.context, 1) - low, "i")) * n
            out: list[tuple[Var, Poly, tuple[Guard, ...]]] = []
            for r in range(n):
                value = whole + r - split[1] if split[0].value == 1 else split[1] - whole - r
                out.append((v, value, (ge(value), ge(v.extent - 1 - value))))
            return out
    return None


def _quotients(d: NF) -> set[Quotient]:
    found: set[Quotient] = set()
    seen: set[Poly] = set()

    def poly(p: Poly) -> None:
        if p in seen:
            return
        seen.add(p)
        for a in p.atoms():
            if isinstance(a, Quotient):
                found.add(a)
            if isinstance(a, (Quotient, Min)):
                poly(a.p)
                poly(a.q)

    for p in substitute.polynomials(d):
        poly(p)
    return found


def _divisors(polys: Iterable[Poly], v: Var) -> set[Poly]:
    found: set[Poly] = set()
    seen: set[object] = set()

    def poly(p: Poly) -> None:
        if v not in p.vars or p in seen:
            return
        seen.add(p)
        for a in p.atoms():
            if isinstance(a, Quotient):
                if a.p is atom_poly(v):
                    found.add(a.q)
                poly(a.p)
            elif isinstance(a, Min):
                poly(a.p)
                poly(a.q)

    for p in polys:
        poly(p)
    return found
