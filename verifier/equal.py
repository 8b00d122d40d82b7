"""Equality of two elements wherever the facts hold.

The difference is brought into normal form. A nonzero rest is split further: by guards on output
indices, by clearing denominators, by the order of two elements, and by a bijection between the
domains of two sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from superopt.verifier import normal as N
from superopt.verifier import substitute as S
from superopt.verifier.algebra import (
    Undefined,
    exponential,
    hoisted,
    inverse,
    power,
    used,
)
from superopt.verifier.comparisons import equals, less
from superopt.verifier.denominators import without_denominators
from superopt.verifier.digits import (
    MOST_VALUES,
    digit_of,
    piece_in_digits,
    rests_of,
    sums_in_digits,
)
from superopt.verifier.facts import Facts, Guard, eq, ge, negated
from superopt.verifier.match import cancelled
from superopt.verifier.maxima import greatest_of
from superopt.verifier.normal import NF, Factor, Piece, Term
from superopt.verifier.order import (
    defined_where,
    dominated,
    impossible,
    split_at,
    without_factor,
)
from superopt.verifier.pieces import absorbed, cancelled_maxima, joined
from superopt.verifier.poly import Poly, Var, const, linear_in
from superopt.verifier.prods import product_over
from superopt.verifier.scalars import applied
from superopt.verifier.simplify import (
    STRONG,
    opened_piece,
    outer_guard,
    simplified,
    times,
    where,
)
from superopt.verifier.unify import form, solved
from superopt.verifier.unroll import unrolled

MOST_CASES = 400
MOST_ORDERS = 6
MOST_UNROLLED = 12


@dataclass(slots=True)
class Budget:
    """How many cases and unrollings are left."""

    cases: int = MOST_CASES
    unrolled: int = MOST_UNROLLED


def equal(a: NF, b: NF, facts: Facts) -> bool:
    """True if a == b is shown."""
    return a is b or vanishes(N.minus(a, b), facts, Budget(), 0)


def equal_inside(a: NF, b: NF, facts: Facts) -> bool:
    """True if a == b is shown where a is defined: where arguments of its roots and logarithms are
    nonnegative."""
    inside = facts
    for element, strictly in defined_where(a):
        inside = inside.ordered(element, strictly)
    if inside is facts or impossible(inside):
        return False
    d = N.minus(*(refined(x, inside) for x in (a, b)))
    return vanishes(d, inside, Budget(), 0)


def vanishes(d: NF, facts: Facts, budget: Budget, depth: int) -> bool:
    """True if `d` is shown to be zero."""
    if not d.terms:
        return True
    budget.cases -= 1
    if budget.cases < 0:
        return False
    d = _defined(d)
    digit = digit_of(d)
    if digit is not None:
        return _at(d, facts, *digit, budget, depth)
    rests = rests_of(d, facts)
    if rests is not None:
        return all(_at(d, facts, *one, budget, depth) for one in rests)
    g = outer_guard(d)
    if g is not None:
        if _both_sides(d, g, facts, budget, depth):
            return True
        return _each_value(d, facts, budget, depth)
    rest = cancelled_maxima(cancelled(d, facts), facts)
    if not rest.terms:
        return True
    if rest is not d:
        return vanishes(rest, facts, budget, depth)
    apart = sums_in_digits(d)
    if apart is not d:
        return vanishes(refined(apart, facts), facts, budget, depth)
    if depth == 0 and not STRONG[0]:
        STRONG[0] = True
        try:
            again = refined(d, facts)
            if again is not d:
                return vanishes(again, facts, budget, 1)
        finally:
            STRONG[0] = False
    if depth < MOST_ORDERS:
        clear = without_denominators(d, facts)
        if clear is not None and clear is not d:
            used("clear denominators")
            return vanishes(clear, facts, budget, depth + 1)
        if facts.orders and dominated(d, facts) and dominated(N.scaled(d, -1), facts):
            return True
        element = split_at(d)
        if element is not None:
            used("order")
            element = without_factor(element, facts)
            sides = (
                facts.ordered(element, False),
                facts.ordered(N.scaled(element, -1), True),
            )
            return all(
                impossible(more) or vanishes(refined(d, more), more, budget, depth + 1)
                for more in sides
            )
    if facts.orders and dominated(d, facts) and dominated(N.scaled(d, -1), facts):
        return True
    out = unrolled(d, facts) if budget.unrolled else d
    if out is not d:
        budget.unrolled -= 1
        return vanishes(refined(out, facts), facts, budget, depth)
    return _each_value(d, facts, budget, depth)


def _defined(d: NF) -> NF:
    """Drop terms that are nonzero only where they divide by 0."""
    kept = [t for t in d.terms if not any(_zero(f, t) for f, _ in t.powers)]
    return d if len(kept) == len(d.terms) else N.form(kept)


def _zero(f: Factor, t: Term) -> bool:
    """True if the term divides by what the indicator `f` says is 0."""
    if not isinstance(f, N.Truth) or f.fn != "eq":
        return False
    one = f.of.single
    plain = one.powers[0][0] if one is not None and len(one.powers) == 1 else None
    return any(
        e < 0 and (g is plain or (isinstance(g, N.Total) and g.of is f.of)) for g, e in t.powers
    )


def _each_value(d: NF, facts: Facts, budget: Budget, depth: int) -> bool:
    """Split by the values of a variable with a small extent."""
    for v in sorted(d.vars, key=lambda v: v.number):
        n = v.extent.value
        if n is not None and n <= MOST_VALUES:
            return all(_at(d, facts, v, const(k), (), budget, depth) for k in range(n))
    return False


def _at(
    d: NF,
    facts: Facts,
    v: Var,
    value: Poly,
    extra: tuple[Guard, ...],
    budget: Budget,
    depth: int,
) -> bool:
    """True if `d` is zero where the variable v has this value."""
    env = {v: value}
    some = (*(S.guard_at(h, env) for h in facts.hypotheses), *extra)
    more = Facts(
        tuple(h for h in some if h.p.value is None or not Facts().holds(h)),
        orders=tuple(S.form_at(o, env) for o in facts.orders if isinstance(o, NF)),
        above=tuple(S.form_at(o, env) for o in facts.above if isinstance(o, NF)),
    )
    if any(h.p.value is not None for h in more.hypotheses):
        return True  # a hypothesis is false here
    return vanishes(refined(S.form_at(d, env), more), more, budget, depth)


def _both_sides(d: NF, g: Guard, facts: Facts, budget: Budget, depth: int) -> bool:
    for side in (g, negated(g)):
        more = facts.plus(side)
        if more.impossible():
            continue
        ends = side.kind == "ge" and side.p.vars and more.holds(ge(-side.p))
        fixed = _solved(eq(side.p) if ends else side)
        if fixed is not None:
            if not _at(d, facts, *fixed, budget, depth):
                return False
            continue
        if not vanishes(refined(d, more), more, budget, depth):
            return False
    return True


def _solved(g: Guard) -> tuple[Var, Poly, tuple[Guard, ...]] | None:
    """Return (v, value, guards) if an equation determines a variable."""
    if g.kind != "eq":
        return None
    for v in sorted(g.p.vars, key=lambda v: -v.number):
        split = linear_in(g.p, v)
        if split is not None and split[0].value in (1, -1):
            value = split[1] if split[0].value == -1 else -split[1]
            return v, value, (ge(value), ge(v.extent - 1 - value))
    return None


# --- again under more facts -----------------------------------------------------------------------


def refined(a: NF, facts: Facts) -> NF:
    """Return `a` with all its parts simplified again under more facts."""
    memo: dict[object, NF] = {}
    return _refined(a, facts, memo)


def _refined(a: NF, facts: Facts, memo: dict[object, NF]) -> NF:
    key = (a, facts.hypotheses)
    found = memo.get(key)
    if found is None:
        found = memo[key] = N.plus(*(_term(t, facts, memo) for t in a.terms))
    return found


def _term(t: Term, facts: Facts, memo: dict[object, NF]) -> NF:
    out: list[Term] = []
    for s in simplified(S.opened(t), facts):
        if not any(_deep(f) for f, _ in s.powers):
            out.append(s)
            continue
        u = S.opened(s)
        inner = facts.plus(*u.guards)
        product = N.constant(u.coefficient)
        for f, e in u.powers:
            product = times(product, _power(f, e, inner, memo), inner)
        for p in product.terms:
            v = S.opened(p)
            out += simplified(
                Term(v.coefficient, v.bound + u.bound, v.guards | u.guards, v.powers), facts
            )
    return N.form(out)


def _deep(f: Factor) -> bool:
    return not isinstance(f, (N.Read, N.Num))


def _power(f: Factor, e: Fraction, facts: Facts, memo: dict[object, NF]) -> NF:
    base: NF
    match f:
        case N.Fn(name="sign" | "sign of integers") if facts.orders:
            of = _refined(f.args[0], facts, memo)
            above, below = (_less(x, facts) for x in (N.scaled(of, -1), of))
            base = N.minus(above, below)
        case N.Fn():
            base = applied(f.name, [_refined(x, facts, memo) for x in f.args], True, facts)
        case N.Exp():
            return hoisted(
                [_refined(f.of, facts, memo)],
                facts,
                lambda args, more: exponential(N.scaled(args[0], e), more),
            )
        case N.Total():
            of = _refined(f.of, facts, memo)
            if of is f.of:
                return power(f, e)
            base = inverse(of, facts)
            e = -e
        case N.Truth():
            of = _refined(f.of, facts, memo)
            if f.fn == "is":
                return power(f)
            known = _compared(f.fn, of, facts)
            if known is not None:
                return N.constant(int(known))
            return less(of, facts) if f.fn == "lt" else equals(of, facts)
        case N.Top():
            pieces = []
            for p in f.pieces:
                q = piece_in_digits(opened_piece(p))
                value = _refined(q.value, facts.plus(*q.guards), memo)
                pieces.append(Piece(q.bound, q.guards, value))
            base = _greatest(pieces, facts)
        case N.Prod():
            q = piece_in_digits(opened_piece(f.piece))
            value = _refined(q.value, facts.plus(*q.guards), memo)
            base = product_over(value, q.bound, facts, q.guards)
        case _:
            return power(f, e)
    one = base.single
    if one is not None and len(base.terms) == 1:
        if e == 1:
            return base
        if one.coefficient == 1 or e.denominator == 1:
            scale = Fraction(one.coefficient) ** int(e) if e.denominator == 1 else Fraction(1)
            powers = tuple((g, x * e) for g, x in one.powers)
            return N.form((Term(scale, (), frozenset(), powers),))
    if e.denominator != 1:
        return power(f, e)
    out = N.constant(1)
    for _ in range(abs(int(e))):
        out = times(out, base, facts)
    return inverse(out, facts) if e < 0 else out


def _less(of: NF, facts: Facts) -> NF:
    """Return 1 where of < 0, else 0, using the order facts."""
    known = _compared("lt", of, facts)
    return less(of, facts) if known is None else N.constant(int(known))


def _compared(fn: str, of: NF, facts: Facts) -> bool | None:
    """Return what the order facts imply of "lt" (of < 0) or "eq" (of == 0)."""
    less = N.scaled(of, -1)
    if fn == "lt":
        return False if dominated(of, facts) else True if dominated(less, facts, True) else None
    if dominated(of, facts, True) or dominated(less, facts, True):
        return False
    return True if dominated(of, facts) and dominated(less, facts) else None


def _greatest(pieces: list[Piece], facts: Facts) -> NF:
    """Return the maximum of open pieces, without pieces that the order facts show to be smaller."""
    for p in pieces:
        g = outer_guard(p.value)
        if g is not None:
            out: list[NF] = []
            for side in (g, negated(g)):
                more = facts.plus(side)
                again = [Piece(q.bound, q.guards, refined(q.value, more)) for q in pieces]
                out.append(where(_greatest(again, more), side, facts))
            return N.plus(*out)
    if facts.orders:
        kept = list(pieces)
        n = 0
        while n < len(kept) and len(kept) > 1:
            p = kept[n]
            plain = [q for q in kept if q is not p and not q.bound and not q.guards]
            below = (
                not p.guards
                and not p.bound
                and (
                    any(dominated(N.minus(q.value, p.value), facts) for q in plain)
                    or any(_exceeds(q, p.value, facts) for q in kept if q is not p and q.bound)
                )
            )
            if below:
                del kept[n]
            else:
                n += 1
        pieces = kept
    return greatest_of(absorbed(joined(pieces, facts), facts), facts)


def _exceeds(q: Piece, low: NF, facts: Facts) -> bool:
    """True if an order fact shows that one value of an open piece is at least `low`."""
    for o in facts.orders:
        assert isinstance(o, NF)
        for equations in form(q.value, o):
            env = solved(equations, q.bound)
            if env is None:
                continue
            wanted = [S.guard_at(g, env) for g in q.guards]
            for u in q.bound:
                wanted += [ge(env[u]), ge(S.poly_at(u.extent, env) - 1 - env[u])]
            inside = all(facts.holds(g) for g in wanted)
            if inside and dominated(N.minus(S.form_at(q.value, env), low), facts):
                return True
    return False


__all__ = ["Undefined", "equal", "equal_inside", "refined", "vanishes"]
