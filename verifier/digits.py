"""Indices split into quotient and remainder: i // n becomes k for i = n * k + r. Applies to output
indices and to bound variables."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from itertools import chain

from superopt.verifier import normal as N
from superopt.verifier import substitute as S
from superopt.verifier.bounds import lowest
from superopt.verifier.facts import Facts, Guard, ge
from superopt.verifier.normal import NF, Piece, Term
from superopt.verifier.poly import Least, Poly, Quot, Var, const, divided, fresh, linear_in, of

MOST_VALUES = 6


def digit_of(d: NF) -> tuple[Var, Poly, tuple[Guard, ...]] | None:
    """Return v = q * a + b for a variable v whose quotient v // q is read, if q divides its
    extent."""
    for v in sorted(d.vars, key=lambda v: v.number):
        both = _digits(v, S.polynomials(d), "i")
        if both is not None:
            digits, digit = both
            return v, of(digits) * digit.extent + of(digit), ()
    return None


def _digits(v: Var, polys: Iterable[Poly], name: str) -> tuple[Var, Var] | None:
    """Return a < n and b < q for v < n * q whose quotient v // q is read. v = a * q + b is a
    bijection."""
    for q in sorted(_divisors(polys, v), key=lambda q: q.number):
        whole, rest = divided(v.extent, q)
        if not rest.terms and whole.value != 1 and whole.terms:
            return fresh(whole, name), fresh(q, name)
    return None


def sums_in_digits(d: NF) -> NF:
    """Return the form with sums over a and b in place of sums over v = q * a + b, if v // q is read
    and q divides the extent of v. The same object if there are none."""
    terms = [_in_digits(t) for t in d.terms]
    if all(new is t for new, t in zip(terms, d.terms, strict=True)):
        return d
    return N.form(t if new is t else S.close(new) for new, t in zip(terms, d.terms, strict=True))


def _in_digits(closed: Term) -> Term:
    """Split the indices of a term; an open term if it changed."""
    t = S.opened(closed)
    found = _apart(t.bound, N.form([Term(t.coefficient, (), t.guards, t.powers)]))
    if found is None:
        return closed
    bound, env = found
    guards = frozenset(S.guard_at(g, env) for g in t.guards)
    return Term(t.coefficient, bound, guards, S.powers_at(t.powers, env))


def piece_in_digits(p: Piece) -> Piece:
    """Split the indices of an open piece: a maximum or product ranges over both parts."""
    guarded = N.form([Term(Fraction(1), (), p.guards, ())])
    found = _apart(p.bound, p.value, guarded)
    if found is None:
        return p
    bound, env = found
    return Piece(bound, frozenset(S.guard_at(g, env) for g in p.guards), S.form_at(p.value, env))


def _apart(bound: tuple[Var, ...], *inside: NF) -> tuple[tuple[Var, ...], dict[Var, Poly]] | None:
    """Return bound variables with one of them split in two, and the value of that one."""
    own = frozenset(bound)
    for n, v in enumerate(bound):
        if any(v in w.extent.vars for w in bound) or v.extent.vars & own:
            continue
        both = _digits(v, chain.from_iterable(map(S.polynomials, inside)), "k")
        if both is not None and not any(w.extent.vars & own for w in both):
            digits, digit = both
            return (*bound[:n], *both, *bound[n + 1 :]), {v: of(digits) * digit.extent + of(digit)}
    return None


def in_digits(bound: tuple[Var, ...], a: NF) -> tuple[tuple[Var, ...], NF]:
    """Split the fresh variables whose quotients are read, and return them with the summand: a sum
    over a flattened axis becomes a sum over the original axes."""
    while (found := _apart(bound, a)) is not None:
        bound, env = found
        a = S.form_at(a, env)
    return bound, a


def rests_of(d: NF, facts: Facts) -> list[tuple[Var, Poly, tuple[Guard, ...]]] | None:
    """Replace p // n for a number n by k, where p = n * k + r, in one case for each remainder r."""
    for a in sorted(_quotients(d), key=lambda a: a.number):
        n = a.q.value
        if n is None or n > MOST_VALUES or not a.p.vars <= d.vars:
            continue
        for v in sorted(a.p.vars, key=lambda v: -v.number):
            split = linear_in(a.p, v)
            low = lowest(-a.p)
            if split is None or split[0].value not in (1, -1) or low is None:
                continue
            if not facts.holds(ge(a.p)):
                continue
            whole = of(fresh(const(1) - low, "i")) * n
            out: list[tuple[Var, Poly, tuple[Guard, ...]]] = []
            for r in range(n):
                value = whole + r - split[1] if split[0].value == 1 else split[1] - whole - r
                out.append((v, value, (ge(value), ge(v.extent - 1 - value))))
            return out
    return None


def _quotients(d: NF) -> set[Quot]:
    found: set[Quot] = set()
    seen: set[Poly] = set()

    def poly(p: Poly) -> None:
        if p in seen:
            return
        seen.add(p)
        for a in p.atoms():
            if isinstance(a, Quot):
                found.add(a)
            if isinstance(a, (Quot, Least)):
                poly(a.p)
                poly(a.q)

    for p in S.polynomials(d):
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
            if isinstance(a, Quot):
                if a.p is of(v):
                    found.add(a.q)
                poly(a.p)
            elif isinstance(a, Least):
                poly(a.p)
                poly(a.q)

    for p in polys:
        poly(p)
    return found
