"""Which of two elements is greater: linear arithmetic over the reals, products as unknowns."""

from __future__ import annotations

import time
from fractions import Fraction

import z3

from superopt.verifier import facts as F
from superopt.verifier import normal as N
from superopt.verifier.facts import Facts
from superopt.verifier.normal import NF, Factor


def dominated(gap: NF, facts: Facts) -> bool:
    """Does gap >= 0 follow from the order facts?"""
    c = gap.constant
    if c is not None:
        return c >= 0
    if gap in facts.orders:
        return True
    if not facts.orders:
        return False
    key = ("order", gap)
    found = facts.order_known.get(key)
    if found is None:
        found = facts.order_known[key] = _follows(gap, facts)
    return found


def _follows(gap: NF, facts: Facts) -> bool:
    if time.monotonic() > F.TALLY.deadline:
        raise F.OutOfTime
    start = time.perf_counter()
    names: dict[object, z3.ArithRef] = {}

    def real(a: NF) -> z3.ArithRef:
        parts: list[z3.ArithRef] = [z3.RealVal(0)]
        for t in a.terms:
            c = z3.RealVal(str(Fraction(t.coefficient)))
            if not (t.bound or t.guards or t.powers):
                parts.append(c)
                continue
            x = names.setdefault(t.key, z3.Real(f"r{len(names)}"))
            parts.append(c * x)
        return z3.Sum(parts)

    s = F._solver()
    s.push()
    try:
        for h in facts.orders:
            s.add(real(h) >= 0)
        s.add(real(gap) < 0)
        out = bool(s.check() == z3.unsat)
    finally:
        s.pop()
    F.TALLY.queries += 1
    F.TALLY.solver_seconds += time.perf_counter() - start
    return out


def split_at(d: NF) -> NF | None:
    """An element whose sign decides a maximum or a comparison in `d`: innermost first."""
    for t in d.terms:
        for f, _ in t.powers:
            found = _in_factor(f, frozenset(t.bound))
            if found is not None:
                return found
    return None


def _in_factor(f: Factor, bound: frozenset[N.Var]) -> NF | None:
    if not f.free.isdisjoint(bound):
        return None
    match f:
        case N.Top():
            for p in f.pieces:
                if not p.bound:
                    found = _in_form(p.value, bound)
                    if found is not None:
                        return found
            plain = [p for p in f.pieces if not p.bound and not p.guards]
            if len(plain) > 1:
                return N.minus(plain[0].value, plain[1].value)
        case N.Truth(fn="lt"):
            return _in_form(f.of, bound) or f.of
        case N.Fn():
            for a in f.args:
                found = _in_form(a, bound)
                if found is not None:
                    return found
        case N.Exp() | N.Total() | N.Truth():
            return _in_form(f.of, bound)
        case _:
            pass
    return None


def _in_form(a: NF, bound: frozenset[N.Var]) -> NF | None:
    for t in a.terms:
        for f, _ in t.powers:
            found = _in_factor(f, bound | frozenset(t.bound))
            if found is not None:
                return found
    return None
