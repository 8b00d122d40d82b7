"""Order of elements: linear arithmetic over the reals, with products as unknowns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from itertools import combinations, islice
from typing import TYPE_CHECKING

from superopt.verifier.elements import normal
from superopt.verifier.elements.algebra import factor_out
from superopt.verifier.elements.intervals import interval, type_of_read
from superopt.verifier.elements.normal import NF, Factor, Term
from superopt.verifier.elements.simplify import multiply
from superopt.verifier.poly.facts import Facts, is_nonnegative
from superopt.verifier.poly.polynomial import Symbol, Var, atom_poly
from superopt.verifier.poly.solver import solver

if TYPE_CHECKING:
    import z3
else:
    from superopt.verifier.poly.lazy_z3 import z3

MAX_ORDER_PAIRS = 15  # pairs of order facts that are multiplied
MAX_TERMS_PER_FACT = 3  # terms of each


def is_order_implied(gap: NF, facts: Facts, strict: bool = False) -> bool:
    """True if gap >= 0 (or gap > 0) is shown to follow from the order facts."""
    c = gap.constant
    if c is not None:
        return c > 0 if strict else c >= 0
    if gap in (facts.positive if strict else facts.nonneg):
        return True
    low, _ = interval(gap)
    if low > 0 if strict else low >= 0:
        return True
    if not facts.nonneg:
        return False
    gap = drop_known_factor(gap, facts)
    key = (strict, gap)
    found = facts.order_answers.get(key)
    if found is None:
        facts.order_answers[key] = False  # while it is being proved, which may ask again
        found = facts.order_answers[key] = _prove_order(gap, facts, strict)
    return found


def _prove_order(gap: NF, facts: Facts, strict: bool) -> bool:
    facts.context.check_budget()
    s = solver(facts.context)
    names: dict[object, z3.ArithRef] = {}
    known = known_signs(facts)
    against_one: dict[object, int] = {}  # before the solver call, since this calls it, too
    for a in (gap, *facts.nonneg):
        assert isinstance(a, NF)
        against_one |= _exponential_bounds(a, facts)
    sides: list[z3.BoolRef] = []

    def real(a: NF) -> z3.ArithRef:
        parts: list[z3.ArithRef] = [z3.RealVal(0, s.ctx)]
        for t in a.terms:
            c = z3.RealVal(str(Fraction(t.coefficient)), s.ctx)
            if not (t.bound or t.guards or t.powers):
                parts.append(c)
                continue
            x = names.get(t.key)
            if x is None:
                x = names[t.key] = z3.Real(f"r{len(names)}", s.ctx)
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

    s.push()
    try:
        for h in facts.nonneg:
            assert isinstance(h, NF)
            s.add(real(h) > 0 if h in facts.positive else real(h) >= 0)
        s.add(real(gap) <= 0 if strict else real(gap) < 0)
        s.add(*sides)
        out = bool(s.check() == z3.unsat)
        products = [] if out else list(_fact_products(facts))
        if products:
            sides.clear()
            for both, above in products:
                s.add(real(both) > 0 if above else real(both) >= 0)
            s.add(*sides)
            out = bool(s.check() == z3.unsat)
    finally:
        s.pop()
    facts.context.queries += 1
    return out


def _fact_products(facts: Facts) -> Iterator[tuple[NF, bool]]:
    """Yield products of two nonnegative order facts, one of them a single term, and whether the
    product is positive."""
    short = [o for o in facts.nonneg if isinstance(o, NF) and len(o.terms) <= MAX_TERMS_PER_FACT]
    for a, b in islice(combinations(short, 2), MAX_ORDER_PAIRS):
        if a.single_term is not None or b.single_term is not None:
            yield multiply(a, b, facts), a in facts.positive and b in facts.positive


def _exponential_bounds(a: NF, facts: Facts) -> dict[object, int]:
    """Map each term exp(x) to the known sign of x: 1 if x >= 0, -1 if x <= 0."""
    out: dict[object, int] = {}
    for t in a.terms:
        if (
            t.bound
            or t.guards
            or not t.powers
            or not all(isinstance(f, normal.Exp) for f, _ in t.powers)
        ):
            continue
        exponent = normal.add_all(
            facts.context,
            (normal.scale(f.argument, e) for f, e in t.powers if isinstance(f, normal.Exp)),
        )
        if is_order_implied(exponent, facts):
            out[t.key] = 1
        elif is_order_implied(normal.scale(exponent, -1), facts):
            out[t.key] = -1
    return out


# 1: nonnegative; 2: positive; -1, -2: likewise negative; 0: zero; None: unknown.
Sign = int | None


def sign(t: Term, factor_signs: Mapping[Factor, int]) -> Sign:
    """Return the sign of a product without its coefficient, given the signs of some factors."""
    if any(_factor_sign(f, factor_signs) == 0 for f, _ in t.powers if f in factor_signs):
        return 0
    out = 2
    for f, e in t.powers:
        own = _factor_sign(f, factor_signs)
        if e.denominator == 1 and int(e) % 2 == 0:
            own = 2 if own in (2, -2) else 1
        elif own is None or (e.denominator != 1 and own < 1):
            return None
        least = min(abs(out), abs(own))
        out = least if (out > 0) == (own > 0) else -least
    if t.guards or not all(is_nonnegative(v.extent - 1) for v in t.bound):
        return min(max(out, -1), 1)
    return out


def _factor_sign(f: Factor, factor_signs: Mapping[Factor, int]) -> Sign:
    own, found = _intrinsic_sign(f, factor_signs), factor_signs.get(f)
    if own is None or found is None:
        return found if own is None else own
    if own < 0:  # of a rounded number
        return min(own, found) if found < 0 else 0
    if found > 0:
        return max(own, found)
    return 0 if found > -2 else own  # negative, which it never is: the facts are contradictory


def _intrinsic_sign(f: Factor, factor_signs: Mapping[Factor, int]) -> Sign:
    """Return the sign that a factor has whatever the facts, or by those of its argument: negative
    only for a rounded number."""
    match f:
        case normal.Exp():
            return 2
        case normal.Num():
            return 2 if isinstance(f.atom, Symbol) and f.atom.low else 1 if _is_natural(f) else None
        case normal.Fn(name="sigmoid"):
            return 2
        case normal.Fn(name="sqrt" | "softplus"):
            return 1
        case normal.Truth():
            return 1
        case normal.Read():
            kind = type_of_read(f)
            return 1 if kind is not None and kind.low >= 0 and kind.bits else None
        case normal.Fn(name="round", args=(a,)):
            return _sign_of_rounded(a, factor_signs)
        case normal.Max():
            lows = [
                c
                for p in f.pieces
                if not p.bound and not p.guards and (c := p.value.constant) is not None
            ]
            if lows and max(lows) > 0:
                return 2
            plain = {p.value for p in f.pieces if not p.bound and not p.guards}
            sizes = any(
                normal.scale(a, -1) in plain for a in plain
            )  # one of x and -x is nonnegative
            return 1 if sizes or (lows and max(lows) == 0) else None
        case normal.Sum():
            signs = [
                s
                if (s := sign(u, factor_signs)) and (s > 0) == (u.coefficient > 0) and s > 0
                else None
                for u in f.argument.terms
            ]
            if any(s is None for s in signs):
                return None
            return max(s for s in signs if s is not None)
        case _:
            return None


def _sign_of_rounded(a: NF, factor_signs: Mapping[Factor, int]) -> Sign:
    """Return the sign of round(a): that of `a`, or zero."""
    one = a.single_term
    own = None if one is None else sign(one, factor_signs)
    if one is None or own is None:
        return None
    return 1 if (own > 0) == (one.coefficient > 0) else -1


def _is_natural(f: normal.Num) -> bool:
    return isinstance(f.atom, (Symbol, Var)) or is_nonnegative(atom_poly(f.atom))


def known_signs(facts: Facts) -> dict[Factor, int]:
    """Return the signs of factors that an order fact bounds directly."""
    out: dict[Factor, int] = {}
    for o in facts.nonneg:
        assert isinstance(o, NF)
        one = o.single_term
        if one is None or len(one.powers) != 1 or one.powers[0][1] not in (1, -1):
            continue
        f = one.powers[0][0]
        own = (2 if o in facts.positive else 1) * (1 if one.coefficient > 0 else -1)
        old = out.get(f, own)
        out[f] = own if abs(own) > abs(old) else old
        if (old > 0) != (own > 0):
            out[f] = 0  # zero, or the facts are contradictory
    return out


def drop_known_factor(a: NF, facts: Facts) -> NF:
    """Return a form with the sign of `a`, without a common factor of known sign."""
    if len(a.terms) < 2:
        return a
    content, rest = factor_out(a)
    plain = Term(Fraction(1), (), frozenset(), content.powers)
    which = sign(plain, known_signs(facts)) if content.powers else None
    if which not in (2, -2):
        return a
    return normal.scale(rest, -1) if (which > 0) != (content.coefficient > 0) else rest


def is_order_contradictory(facts: Facts) -> bool:
    """True if the order facts contradict the known signs."""
    return bool(facts.nonneg) and _prove_order(normal.constant(facts.context, -1), facts, False)


def split_element(d: NF) -> NF | None:
    """Return an element whose sign decides a maximum or comparison in `d`, innermost first."""
    for t in d.terms:
        for f, _ in t.powers:
            found = _split_in_factor(f, frozenset(t.bound))
            if found is not None:
                return found
    return None


def _split_in_factor(f: Factor, bound: frozenset[Var]) -> NF | None:
    if not f.free_vars.isdisjoint(bound):
        return None
    match f:
        case normal.Max():
            for p in f.pieces:
                if not p.bound:
                    found = _split_in_form(p.value, bound)
                    if found is not None:
                        return found
            plain = [p for p in f.pieces if not p.bound and not p.guards]
            if len(plain) > 1:
                return normal.subtract(plain[0].value, plain[1].value)
        case normal.Truth(fn="lt"):
            return _split_in_form(f.argument, bound) or f.argument
        case normal.Fn():
            for a in f.args:
                found = _split_in_form(a, bound)
                if found is not None:
                    return found
            if f.name in ("sign", "sign of integers"):
                return f.args[0]
        case normal.Exp() | normal.Sum() | normal.Truth():
            return _split_in_form(f.argument, bound)
        case _:
            pass
    return None


def _split_in_form(a: NF, bound: frozenset[Var]) -> NF | None:
    for t in a.terms:
        for f, _ in t.powers:
            found = _split_in_factor(f, bound | frozenset(t.bound))
            if found is not None:
                return found
    return None


def definedness_conditions(a: NF) -> Iterator[tuple[NF, bool]]:
    """Yield arguments of roots and logarithms, which are >= 0 or (True) > 0 where the form is
    defined, outside sums and outside branches of a choice."""
    for t in a.terms:
        if t.bound or t.guards or any(isinstance(f, normal.Truth) for f, _ in t.powers):
            continue
        for f, _ in t.powers:
            match f:
                case normal.Fn(name="log" | "sqrt" as name, args=(argument,)):
                    yield argument, name == "log"
                    yield from definedness_conditions(argument)
                case normal.Exp() | normal.Sum():
                    yield from definedness_conditions(f.argument)
                case _:
                    pass
