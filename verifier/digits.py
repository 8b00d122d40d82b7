"""Indices as quotients and rests: what reads i // n reads k where i is n * k + r. These are output
indices, and what sums are over."""

from __future__ import annotations

from superopt.verifier import normal as N
from superopt.verifier import substitute as S
from superopt.verifier.bounds import lowest
from superopt.verifier.facts import Facts, Guard, ge
from superopt.verifier.normal import NF, Term
from superopt.verifier.poly import Least, Poly, Quot, Var, const, divided, fresh, linear_in, of
from superopt.verifier.simplify import simplified

MOST_VALUES = 6


def digit_of(d: NF) -> tuple[Var, Poly, tuple[Guard, ...]] | None:
    """v = q * a + b for a variable of which v // q is read, where q divides its extent."""
    for v in sorted(d.vars, key=lambda v: v.number):
        split = digit_of_one(d, v)
        if split is not None:
            return v, split[2], ()
    return None


def sums_in_digits(d: NF, facts: Facts) -> NF:
    """`d` with sums over k < n q of what reads k // q as sums over i < n and r < q, where k is
    q i + r; the same object where there are none."""
    out: list[Term] = []
    for t in d.terms:
        out += _in_digits(t, facts)
    same = len(out) == len(d.terms) and all(s is t for s, t in zip(out, d.terms, strict=True))
    return d if same else N.form(out)


def _in_digits(t: Term, facts: Facts) -> list[Term]:
    if not t.bound:
        return [t]
    u = S.opened(t)
    later = frozenset(a for v in u.bound for a in v.extent.vars)
    for v in u.bound:
        split = None if v in later else digit_of_one(N.form((u,)), v)
        if split is None:
            continue
        digits, digit, value = split
        env = {v: value}
        bound = (*(w for w in u.bound if w is not v), digits, digit)
        guards = frozenset(S.guard_at(g, env) for g in u.guards)
        term = Term(u.coefficient, bound, guards, S.powers_at(u.powers, env))
        return [one for s in simplified(term, facts) for one in _in_digits(s, facts)]
    return [t]


def digit_of_one(d: NF, v: Var) -> tuple[Var, Var, Poly] | None:
    """i, r and q * i + r for a variable v of which v // q is read, where q divides its extent."""
    for q in sorted(_divisors(d, v), key=lambda q: q.number):
        whole, rest = divided(v.extent, q)
        if not rest.terms and whole.value != 1 and whole.terms:
            digits, digit = fresh(whole, "i"), fresh(q, "i")
            return digits, digit, of(digits) * q + of(digit)
    return None


def rests_of(d: NF, facts: Facts) -> list[tuple[Var, Poly, tuple[Guard, ...]]] | None:
    """p // n for a number n is k where p = n * k + r, for each rest r."""
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


def _divisors(d: NF, v: Var) -> set[Poly]:
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

    for p in S.polynomials(d):
        poly(p)
    return found
