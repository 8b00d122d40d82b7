"""Maxima of normal forms: of several values, and over bound variables.

Increasing functions are hoisted out of a maximum: max(exp(a), exp(b)) is exp(max(a, b)).
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from superopt.verifier import normal as N
from superopt.verifier import substitute as S
from superopt.verifier.algebra import (
    INFINITY,
    Undefined,
    exponential,
    hoisted,
    inverse,
    odd,
    over,
    power,
    shared_powers,
)
from superopt.verifier.facts import Facts, Guard, ge, negated
from superopt.verifier.monotone import GROW, argument, odd_of, quotient, turned
from superopt.verifier.normal import NF, Piece, Term, Top
from superopt.verifier.order import factors, sign
from superopt.verifier.poly import Var
from superopt.verifier.simplify import opened_piece, outer_guard, simplified_piece, times, under

MOST_SPLITS = 64


def greatest(values: Sequence[NF], facts: Facts) -> NF:
    """Return the maximum of several values."""
    return hoisted(
        values,
        facts,
        lambda args, more: greatest_of([Piece((), frozenset(), a) for a in args], more),
    )


def greatest_over(a: NF, bound: tuple[Var, ...], facts: Facts) -> NF:
    """Return the maximum of `a` over fresh variables."""
    own = frozenset(bound)
    g = _guard_apart(a, own)
    if g is not None:
        return hoisted([a], facts, lambda args, more: greatest_over(args[0], bound, more))
    pieces: list[Piece] = []
    _pieces(a, bound, frozenset(), facts, pieces)
    return greatest_of(pieces, facts)


def _guard_apart(a: NF, own: frozenset[Var]) -> Guard | None:
    g = outer_guard(a)
    return g if g is not None and g.p.vars.isdisjoint(own) else None


def _pieces(
    a: NF, bound: tuple[Var, ...], guards: frozenset[Guard], facts: Facts, out: list[Piece]
) -> None:
    g = outer_guard(a)
    if g is None:
        out.append(Piece(bound, guards, a))
        return
    if len(out) > MOST_SPLITS:
        raise Undefined("too many pieces of a maximum")
    for side in (g, negated(g)):
        _pieces(under(a, facts.plus(*guards, side)), bound, guards | {side}, facts, out)


def greatest_of(pieces: Sequence[Piece], facts: Facts) -> NF:
    """Return the maximum of open pieces whose values have no outer guards."""
    flat: list[Piece] = []
    for p in pieces:
        _flatten(p, facts, flat)
    kept: dict[Piece, None] = {}
    best: Fraction | None = None
    for p in flat:
        if _lowest(p.value):
            continue
        done = simplified_piece(p, facts)
        if done is None:
            continue
        c = done.value.constant
        if c is not None and not done.bound and not done.guards:
            best = c if best is None else max(best, c)
            continue
        kept[done] = None
    if best is not None:
        kept[Piece((), frozenset(), N.constant(best))] = None
    kept = _sizes_apart(kept, facts)
    if not kept:
        return N.scaled(power(N.fn(INFINITY, (N.zero(),))), -1)
    shift = _common(list(kept))
    back = N.scaled(shift, -1)
    moved = frozenset(
        S.close_piece(Piece(q.bound, q.guards, N.plus(q.value, back)))
        for q in map(opened_piece, kept)
    )
    if len(moved) == 1:
        (only,) = moved
        if not only.bound and not only.guards:
            return N.plus(only.value, shift)
    return N.plus(_scaled([opened_piece(p) for p in moved], facts), shift)


def _sizes_apart(pieces: dict[Piece, None], facts: Facts) -> dict[Piece, None]:
    """Replace max(x y, -x y) by max(x, -x) max(y, -y)."""
    out = dict(pieces)
    for p in pieces:
        one = p.value.single
        if p not in out or p.bound or p.guards or one is None or one.coefficient < 0:
            continue
        other = Piece((), frozenset(), N.scaled(p.value, -1))
        if other not in out or len(one.powers) < 2:
            continue
        del out[p], out[other]
        value = N.constant(one.coefficient)
        for f, e in one.powers:
            x = power(f, e)
            if e.denominator == 1 and int(e) % 2 and (_sign((f, e), facts) or 0) < 1:
                x = greatest_of([Piece((), frozenset(), y) for y in (x, N.scaled(x, -1))], facts)
            value = times(value, x, facts)
        out[Piece((), frozenset(), value)] = None
    return out


def _sign(p: N.Power, facts: Facts) -> int | None:
    return sign(Term(Fraction(1), (), frozenset(), (p,)), factors(facts))


def _scaled(pieces: Sequence[Piece], facts: Facts) -> NF:
    """Replace max(c a, c b) by c max(a, b) for c > 0, and for c = 0 if a value exists."""
    some = any(not p.guards and all(facts.holds(ge(v.extent - 1)) for v in p.bound) for p in pieces)
    shared = shared_powers([p.value for p in pieces], frozenset(v for p in pieces for v in p.bound))
    signs = {p: _sign(p, facts) for p in shared}
    scale = tuple(p for p in shared if signs[p] == 2 or (signs[p] == 1 and p[1] > 0 and some))
    if not scale:
        return _greatest(pieces, facts)
    rest = [Piece(p.bound, p.guards, over(p.value, scale)) for p in pieces]
    out = greatest_of(rest, facts)
    return times(N.form((Term(Fraction(1), (), frozenset(), scale),)), out, facts)


def _greatest(pieces: Sequence[Piece], facts: Facts) -> NF:
    grown = _grown(pieces, facts)
    return power(N.top(frozenset(map(S.close_piece, pieces)))) if grown is None else grown


def _lowest(a: NF) -> bool:
    """True for -inf."""
    one = a.single
    return (
        one is not None
        and one.coefficient < 0
        and len(one.powers) == 1
        and isinstance(one.powers[0][0], N.Fn)
        and one.powers[0][0].name == INFINITY
    )


def _flatten(p: Piece, facts: Facts, out: list[Piece]) -> None:
    """Flatten nested maxima: max(c * max(a, b) + r) is max(c a + r, c b + r), c > 0."""
    for t in p.value.terms:
        if t.bound or t.guards or t.coefficient < 0:
            continue
        f = next((f for f, e in t.powers if isinstance(f, Top) and e == 1), None)
        if f is None:
            continue
        beside = tuple(q for q in t.powers if q[0] is not f)
        if beside and sign(Term(Fraction(1), (), frozenset(), beside), factors(facts)) != 2:
            continue
        scale = N.form((Term(t.coefficient, (), frozenset(), beside),))
        rest = N.minus(p.value, N.form((t,)))
        for q in f.pieces:
            inner = opened_piece(q)
            value = N.plus(times(scale, inner.value, facts), rest)
            _flatten(Piece(p.bound + inner.bound, p.guards | inner.guards, value), facts, out)
        return
    out.append(p)


def _common(pieces: list[Piece]) -> NF:
    """Return the terms common to all pieces that do not depend on their bound variables."""
    shared: dict[object, Term] | None = None
    for p in pieces:
        own = frozenset(p.bound)
        here = {
            t: t for t in p.value.terms if N.free_of(t).isdisjoint(own) and (t.powers or t.bound)
        }
        shared = here if shared is None else {t: t for t in shared if t in here}  # type: ignore
    if len(pieces) == 1 and not pieces[0].bound and not pieces[0].guards:
        return N.zero()
    return N.form(shared.values() if shared else ())


def _grown(pieces: Sequence[Piece], facts: Facts) -> NF | None:
    """Return a maximum of values of one monotone function as that function of a maximum (or
    minimum): exp, 1 / x for positive x, roots and others. None if there is no such function."""
    plus = _number(pieces[0].value)
    if plus and all(_number(p.value) == plus for p in pieces):
        rest = [Piece(p.bound, p.guards, N.minus(p.value, N.constant(plus))) for p in pieces]
        found = _grown(rest, facts)
        return None if found is None else N.plus(found, N.constant(plus))
    values = [one for p in pieces if (one := p.value.single) is not None and one.powers]
    c = abs(values[0].coefficient) if values else Fraction(0)
    if len(values) < len(pieces) or any(abs(t.coefficient) != c for t in values):
        return None

    def greatest(args: Sequence[NF], up: bool) -> NF:
        scale = 1 if up else -1
        some = [
            Piece(p.bound, p.guards, N.scaled(a, scale)) for p, a in zip(pieces, args, strict=True)
        ]
        return N.scaled(greatest_of(some, facts), scale)

    name = odd_of(values[0])
    if name and all(odd_of(t) == name for t in values):
        args = [N.scaled(argument(t), t.coefficient / c) for t in values]
        return hoisted([greatest(args, True)], facts, lambda a, _: N.scaled(odd(name, a[0]), c))
    up = values[0].coefficient > 0
    if any((t.coefficient > 0) != up for t in values):
        return None
    c = c if up else -c
    if all(isinstance(f, N.Exp) for t in values for f, _ in t.powers):
        k = abs(values[0].powers[0][1])
        args = [
            N.plus(*(N.scaled(f.of, e / k) for f, e in t.powers if isinstance(f, N.Exp)))
            for t in values
        ]
        return N.scaled(exponential(N.scaled(greatest(args, up), k), facts), c)
    if all(e == -1 for t in values for f, e in t.powers if isinstance(f, N.Total)) and all(
        map(quotient, values)
    ):
        args = [turned(t, facts) for t in values]
        return N.scaled(inverse(greatest(args, not up), facts), c)
    if any(len(t.powers) > 1 for t in values):
        return None
    (f, _), *_ = values[0].powers
    name = f.name if isinstance(f, N.Fn) and f.name in GROW and len(f.args) == 1 else ""
    if name and all(
        isinstance(g, N.Fn) and g.name == name and e == 1 for t in values for g, e in t.powers
    ):
        top = greatest([argument(t) for t in values], up)
        return hoisted([top], facts, lambda a, _: N.scaled(power(N.fn(name, (a[0],))), c))
    return None


def _number(a: NF) -> Fraction:
    """Return the constant term."""
    plain = (t.coefficient for t in a.terms if not (t.bound or t.guards or t.powers))
    return next(plain, Fraction(0))
