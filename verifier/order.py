"""Which of two elements is greater: linear arithmetic over the reals, products as unknowns."""

from __future__ import annotations

import time
from fractions import Fraction

import z3

from superopt.verifier import guard as G
from superopt.verifier import normal as N
from superopt.verifier import solver as Z
from superopt.verifier.facts import Facts
from superopt.verifier.normal import NF, Factor, Term
from superopt.verifier.poly import Sym, Var


def dominated(gap: NF, facts: Facts, strictly: bool = False) -> bool:
    """Does gap >= 0 (or gap > 0) follow from the order facts?"""
    c = gap.constant
    if c is not None:
        return c > 0 if strictly else c >= 0
    if gap in (facts.above if strictly else facts.orders):
        return True
    if not facts.orders:
        return False
    key = (strictly, gap)
    found = facts.order_known.get(key)
    if found is None:
        found = facts.order_known[key] = _follows(gap, facts, strictly)
    return found


def _follows(gap: NF, facts: Facts, strictly: bool) -> bool:
    G.in_time()
    start = time.perf_counter()
    names: dict[object, z3.ArithRef] = {}
    sides: list[z3.BoolRef] = []

    def real(a: NF) -> z3.ArithRef:
        parts: list[z3.ArithRef] = [z3.RealVal(0)]
        for t in a.terms:
            c = z3.RealVal(str(Fraction(t.coefficient)))
            if not (t.bound or t.guards or t.powers):
                parts.append(c)
                continue
            x = names.get(t.key)
            if x is None:
                x = names[t.key] = z3.Real(f"r{len(names)}")
                known = _sign(t)
                if known:
                    sides.append(x > 0 if known > 1 else x >= 0)
            parts.append(c * x)
        return z3.Sum(parts)

    s = Z.solver()
    s.push()
    try:
        for h in facts.orders:
            assert isinstance(h, NF)
            s.add(real(h) > 0 if h in facts.above else real(h) >= 0)
        s.add(real(gap) <= 0 if strictly else real(gap) < 0)
        s.add(*sides)
        out = bool(s.check() == z3.unsat)
    finally:
        s.pop()
    G.TALLY.queries += 1
    G.TALLY.solver_seconds += time.perf_counter() - start
    return out


def _sign(t: Term) -> int:
    """2: a product that is above 0; 1: that is never below; 0: not known."""
    sign = 2
    for f, e in t.powers:
        match f:
            case N.Exp():
                pass
            case N.Num():
                sign = sign if isinstance(f.atom, Sym) and f.atom.low else min(sign, 1)
            case N.Fn(name="sigmoid"):
                pass
            case N.Fn(name="sqrt" | "softplus"):
                sign = min(sign, 1)
            case N.Top():
                lows = [
                    c
                    for p in f.pieces
                    if not p.bound and not p.guards and (c := p.value.constant) is not None
                ]
                if not lows or max(lows) < 0:
                    return 0
                sign = min(sign, 2 if max(lows) > 0 else 1)
            case N.Total():
                signs = [_sign(u) if u.coefficient > 0 else 0 for u in f.of.terms]
                if not signs or not min(signs):
                    return 0
                sign = min(sign, max(signs))
            case _:
                if e.denominator != 1 or int(e) % 2:
                    return 0
                sign = min(sign, 1)
    return min(sign, 1) if t.bound or t.guards else sign


def impossible(facts: Facts) -> bool:
    """Do the order facts contradict what is known of signs?"""
    return bool(facts.orders) and _follows(N.constant(-1), facts, False)


def split_at(d: NF) -> NF | None:
    """An element whose sign decides a maximum or a comparison in `d`: innermost first."""
    for t in d.terms:
        for f, _ in t.powers:
            found = _in_factor(f, frozenset(t.bound))
            if found is not None:
                return found
    return None


def _in_factor(f: Factor, bound: frozenset[Var]) -> NF | None:
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


def _in_form(a: NF, bound: frozenset[Var]) -> NF | None:
    for t in a.terms:
        for f, _ in t.powers:
            found = _in_factor(f, bound | frozenset(t.bound))
            if found is not None:
                return found
    return None
