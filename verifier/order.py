"""Order of elements: linear arithmetic over the reals, with products as unknowns."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from fractions import Fraction
from itertools import combinations, islice
from typing import TYPE_CHECKING

from superopt.verifier import guard as G
from superopt.verifier import normal as N
from superopt.verifier import solver as Z
from superopt.verifier.algebra import factored
from superopt.verifier.facts import Facts, nonneg
from superopt.verifier.normal import NF, Factor, Term
from superopt.verifier.poly import Sym, Var, of
from superopt.verifier.simplify import times

if TYPE_CHECKING:
    import z3
else:
    from superopt.verifier.lazy import z3

MOST_PAIRS = 15  # pairs of order facts that are multiplied
MOST_TERMS = 3  # terms of each


def dominated(gap: NF, facts: Facts, strictly: bool = False) -> bool:
    """True if gap >= 0 (or gap > 0) is shown to follow from the order facts."""
    c = gap.constant
    if c is not None:
        return c > 0 if strictly else c >= 0
    if gap in (facts.above if strictly else facts.orders):
        return True
    if not facts.orders:
        return False
    gap = without_factor(gap, facts)
    key = (strictly, gap)
    found = facts.order_known.get(key)
    if found is None:
        facts.order_known[key] = False  # while it is being proved, which may ask again
        found = facts.order_known[key] = _follows(gap, facts, strictly)
    return found


def _follows(gap: NF, facts: Facts, strictly: bool) -> bool:
    G.in_time()
    start = time.perf_counter()
    names: dict[object, z3.ArithRef] = {}
    known = factors(facts)
    against_one: dict[object, int] = {}  # before the solver call, since this calls it, too
    for a in (gap, *facts.orders):
        assert isinstance(a, NF)
        against_one |= _exponentials(a, facts)
    sides: list[z3.BoolRef] = []

    def real(a: NF) -> z3.ArithRef:
        parts: list[z3.ArithRef] = [z3.RealVal(0, Z.context())]
        for t in a.terms:
            c = z3.RealVal(str(Fraction(t.coefficient)), Z.context())
            if not (t.bound or t.guards or t.powers):
                parts.append(c)
                continue
            x = names.get(t.key)
            if x is None:
                x = names[t.key] = z3.Real(f"r{len(names)}", Z.context())
                if (one := against_one.get(t.key)) is not None:
                    sides.append(x >= 1 if one > 0 else x <= 1)
                match sign(t, known):
                    case None:
                        pass
                    case 0:
                        sides.append(x == 0)
                    case which:
                        y = x if which > 0 else -x
                        sides.append(y > 0 if abs(which) > 1 else y >= 0)
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
        products = [] if out else list(_products(facts))
        if products:
            sides.clear()
            for both, above in products:
                s.add(real(both) > 0 if above else real(both) >= 0)
            s.add(*sides)
            out = bool(s.check() == z3.unsat)
    finally:
        s.pop()
    G.TALLY.queries += 1
    G.TALLY.solver_seconds += time.perf_counter() - start
    return out


def _products(facts: Facts) -> Iterator[tuple[NF, bool]]:
    """Yield products of two nonnegative order facts, one of them a single term, and whether the
    product is positive."""
    some = [o for o in facts.orders if isinstance(o, NF) and len(o.terms) <= MOST_TERMS]
    for a, b in islice(combinations(some, 2), MOST_PAIRS):
        if a.single is not None or b.single is not None:
            yield times(a, b, facts), a in facts.above and b in facts.above


def _exponentials(a: NF, facts: Facts) -> dict[object, int]:
    """Map terms exp(x) to 1 if they are at least 1 (x >= 0), to -1 if they are at most 1."""
    out: dict[object, int] = {}
    for t in a.terms:
        if (
            t.bound
            or t.guards
            or not t.powers
            or not all(isinstance(f, N.Exp) for f, _ in t.powers)
        ):
            continue
        of = N.plus(*(N.scaled(f.of, e) for f, e in t.powers if isinstance(f, N.Exp)))
        if dominated(of, facts):
            out[t.key] = 1
        elif dominated(N.scaled(of, -1), facts):
            out[t.key] = -1
    return out


# 1: nonnegative; 2: positive; -1, -2: likewise negative; 0: zero; None: unknown.
Sign = int | None


def sign(t: Term, known: Mapping[Factor, int]) -> Sign:
    """Return the sign of a product without its coefficient, given the signs of some factors."""
    if any(_factor(f, known) == 0 for f, _ in t.powers if f in known):
        return 0
    out = 2
    for f, e in t.powers:
        own = _factor(f, known)
        if e.denominator == 1 and int(e) % 2 == 0:
            own = 2 if own in (2, -2) else 1
        elif own is None or (e.denominator != 1 and own < 1):
            return None
        least = min(abs(out), abs(own))
        out = least if (out > 0) == (own > 0) else -least
    if t.guards or not all(nonneg(v.extent - 1) for v in t.bound):
        return min(max(out, -1), 1)
    return out


def _factor(f: Factor, known: Mapping[Factor, int]) -> Sign:
    own, found = _own(f, known), known.get(f)
    if own is None or found is None:
        return found if own is None else own
    if found > 0:
        return max(own, found)
    return 0 if found > -2 else own  # negative, which it never is: the facts are contradictory


def _own(f: Factor, known: Mapping[Factor, int]) -> Sign:
    """Return the sign that a factor has whatever the facts: positive or nonnegative."""
    match f:
        case N.Exp():
            return 2
        case N.Num():
            return 2 if isinstance(f.atom, Sym) and f.atom.low else 1 if _natural(f) else None
        case N.Fn(name="sigmoid"):
            return 2
        case N.Fn(name="sqrt" | "softplus"):
            return 1
        case N.Truth():
            return 1
        case N.Top():
            lows = [
                c
                for p in f.pieces
                if not p.bound and not p.guards and (c := p.value.constant) is not None
            ]
            if lows and max(lows) > 0:
                return 2
            plain = {p.value for p in f.pieces if not p.bound and not p.guards}
            sizes = any(N.scaled(a, -1) in plain for a in plain)  # one of x and -x is nonnegative
            return 1 if sizes or (lows and max(lows) == 0) else None
        case N.Total():
            signs = [
                s if (s := sign(u, known)) and (s > 0) == (u.coefficient > 0) and s > 0 else None
                for u in f.of.terms
            ]
            if any(s is None for s in signs):
                return None
            return max(s for s in signs if s is not None)
        case _:
            return None


def _natural(f: N.Num) -> bool:
    return isinstance(f.atom, (Sym, Var)) or nonneg(of(f.atom))


def factors(facts: Facts) -> dict[Factor, int]:
    """Return the signs of factors that an order fact bounds directly."""
    out: dict[Factor, int] = {}
    for o in facts.orders:
        assert isinstance(o, NF)
        one = o.single
        if one is None or len(one.powers) != 1 or one.powers[0][1] not in (1, -1):
            continue
        f = one.powers[0][0]
        own = (2 if o in facts.above else 1) * (1 if one.coefficient > 0 else -1)
        old = out.get(f, own)
        out[f] = own if abs(own) > abs(old) else old
        if (old > 0) != (own > 0):
            out[f] = 0  # zero, or the facts are contradictory
    return out


def without_factor(a: NF, facts: Facts) -> NF:
    """Return a form with the sign of `a`, without a common factor of known sign."""
    if len(a.terms) < 2:
        return a
    content, rest = factored(a)
    plain = Term(Fraction(1), (), frozenset(), content.powers)
    which = sign(plain, factors(facts)) if content.powers else None
    if which not in (2, -2):
        return a
    return N.scaled(rest, -1) if (which > 0) != (content.coefficient > 0) else rest


def impossible(facts: Facts) -> bool:
    """True if the order facts contradict the known signs."""
    return bool(facts.orders) and _follows(N.constant(-1), facts, False)


def split_at(d: NF) -> NF | None:
    """Return an element whose sign decides a maximum or comparison in `d`, innermost first."""
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
            if f.name in ("sign", "sign of integers"):
                return f.args[0]
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


def defined_where(a: NF) -> Iterator[tuple[NF, bool]]:
    """Yield arguments of roots and logarithms, which are >= 0 or (True) > 0 where the form is
    defined, outside sums and outside branches of a choice."""
    for t in a.terms:
        if t.bound or t.guards or any(isinstance(f, N.Truth) for f, _ in t.powers):
            continue
        for f, _ in t.powers:
            match f:
                case N.Fn(name="log" | "sqrt" as name, args=(of,)):
                    yield of, name == "log"
                    yield from defined_where(of)
                case N.Exp() | N.Total():
                    yield from defined_where(f.of)
                case _:
                    pass
