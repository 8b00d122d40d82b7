"""Output indices as quotients and rests: what reads i // n reads k where i is n * k + r."""

from __future__ import annotations

from superopt.verifier import substitute as S
from superopt.verifier.bounds import lowest
from superopt.verifier.facts import Facts, Guard, ge
from superopt.verifier.normal import NF
from superopt.verifier.poly import Least, Poly, Quot, Var, const, divided, fresh, linear_in, of

MOST_VALUES = 6


def digit_of(d: NF) -> tuple[Var, Poly, tuple[Guard, ...]] | None:
    """v = q * a + b for a variable of which v // q is read, where q divides its extent."""
    for v in sorted(d.vars, key=lambda v: v.number):
        for q in sorted(_divisors(d, v), key=lambda q: q.number):
            whole, rest = divided(v.extent, q)
            if not rest.terms and whole.value != 1 and whole.terms:
                digits, digit = fresh(whole, "i"), fresh(q, "i")
                return v, of(digits) * q + of(digit), ()
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
