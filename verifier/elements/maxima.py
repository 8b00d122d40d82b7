"""Maxima of normal forms: of several values, and over bound variables.

Increasing functions are hoisted out of a maximum: max(exp(a), exp(b)) is exp(max(a, b)).
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from superopt.verifier.elements import normal, substitute
from superopt.verifier.elements.algebra import (
    INFINITY,
    Undefined,
    common_powers,
    divide_by_powers,
    exponential,
    hoist_guards,
    odd_function,
    power,
    reciprocal,
    split_by_guard,
)
from superopt.verifier.elements.monotone import (
    INCREASING,
    expand_reciprocal,
    function_argument,
    is_positive_reciprocal,
    odd_function_name,
)
from superopt.verifier.elements.normal import NF, Max, Piece, Term
from superopt.verifier.elements.order import known_signs, sign
from superopt.verifier.elements.simplify import (
    multiply,
    open_piece,
    outer_guard,
    simplify_piece,
    simplify_under,
)
from superopt.verifier.poly.facts import Facts, Guard, ge, negate
from superopt.verifier.poly.polynomial import Var

MAX_PIECES = 64


def max_of(values: Sequence[NF], facts: Facts) -> NF:
    """Return the maximum of several values."""
    return hoist_guards(
        values,
        facts,
        lambda args, more: max_of_pieces([Piece((), frozenset(), a) for a in args], more),
    )


def max_over(a: NF, bound: tuple[Var, ...], facts: Facts) -> NF:
    """Return the maximum of `a` over fresh variables."""
    own = frozenset(bound)
    g = _independent_guard(a, own)
    if g is not None:
        return split_by_guard(a, g, facts, lambda part, more: max_over(part, bound, more))
    pieces: list[Piece] = []
    _split_pieces(a, bound, frozenset(), facts, pieces)
    return max_of_pieces(pieces, facts)


def _independent_guard(a: NF, bound: frozenset[Var]) -> Guard | None:
    g = outer_guard(a)
    return g if g is not None and g.p.vars.isdisjoint(bound) else None


def _split_pieces(
    a: NF, bound: tuple[Var, ...], guards: frozenset[Guard], facts: Facts, out: list[Piece]
) -> None:
    g = outer_guard(a)
    if g is None:
        out.append(Piece(bound, guards, a))
        return
    if len(out) > MAX_PIECES:
        raise Undefined("too many pieces of a maximum")
    for side in (g, negate(g)):
        _split_pieces(
            simplify_under(a, facts.with_guards(*guards, side)), bound, guards | {side}, facts, out
        )


def max_of_pieces(pieces: Sequence[Piece], facts: Facts) -> NF:
    """Return the maximum of open pieces whose values have no outer guards."""
    flat: list[Piece] = []
    for p in pieces:
        _flatten(p, facts, flat)
    kept: dict[Piece, None] = {}
    best: Fraction | None = None
    for p in flat:
        if _is_negative_infinity(p.value):
            continue
        done = simplify_piece(p, facts)
        if done is None:
            continue
        c = done.value.constant
        if c is not None and not done.bound and not done.guards:
            best = c if best is None else max(best, c)
            continue
        kept[done] = None
    if best is not None:
        kept[Piece((), frozenset(), normal.constant(facts.context, best))] = None
    kept = _merge_minima(_split_absolute_products(kept, facts), facts)
    if not kept:
        return normal.scale(power(normal.fn(INFINITY, (normal.zero(facts.context),))), -1)
    shift = _common_terms(list(kept))
    back = normal.scale(shift, -1)
    moved = frozenset(
        substitute.close_piece(Piece(q.bound, q.guards, normal.add(q.value, back)))
        for q in map(open_piece, kept)
    )
    if len(moved) == 1:
        (only,) = moved
        if not only.bound and not only.guards:
            return normal.add(only.value, shift)
    return normal.add(_hoist_factors([open_piece(p) for p in moved], facts), shift)


def _merge_minima(pieces: dict[Piece, None], facts: Facts) -> dict[Piece, None]:
    """Replace min(a_k, c) over k by min(max(a_k), c), for a number c."""
    limited = {p: found for p in pieces if p.bound and (found := _minimum_with_number(p.value))}
    for c in {c for _, c in limited.values()}:
        some = [p for p, (_, own) in limited.items() if own == c]
        inner = [
            Piece(q.bound, q.guards, _minimum_with_number(q.value)[0])  # type: ignore[index]
            for q in map(open_piece, some)
        ]
        values = [max_of_pieces(inner, facts), normal.constant(facts.context, c)]
        low = max_of([normal.scale(a, -1) for a in values], facts)
        pieces = {p: None for p in pieces if p not in some}
        pieces[Piece((), frozenset(), normal.scale(low, -1))] = None
    return pieces


def _minimum_with_number(a: NF) -> tuple[NF, Fraction] | None:
    """Return x and c of a minimum of x and the number c, None for other forms."""
    one = a.single_term
    if one is None or one.coefficient != -1 or len(one.powers) != 1:
        return None
    f, e = one.powers[0]
    if not isinstance(f, Max) or e != 1 or len(f.pieces) != 2:
        return None
    if any(p.bound or p.guards for p in f.pieces):
        return None
    first, second = (p.value for p in f.pieces)
    x, c = (second, first.constant) if first.constant is not None else (first, second.constant)
    return None if c is None else (normal.scale(x, -1), -c)


def _split_absolute_products(pieces: dict[Piece, None], facts: Facts) -> dict[Piece, None]:
    """Replace max(x y, -x y) by max(x, -x) max(y, -y)."""
    out = dict(pieces)
    for p in pieces:
        one = p.value.single_term
        if p not in out or p.bound or p.guards or one is None or one.coefficient < 0:
            continue
        other = Piece((), frozenset(), normal.scale(p.value, -1))
        if other not in out or len(one.powers) < 2:
            continue
        del out[p], out[other]
        value = normal.constant(facts.context, one.coefficient)
        for f, e in one.powers:
            x = power(f, e)
            if e.denominator == 1 and int(e) % 2 and (_power_sign((f, e), facts) or 0) < 1:
                x = max_of_pieces(
                    [Piece((), frozenset(), y) for y in (x, normal.scale(x, -1))], facts
                )
            value = multiply(value, x, facts)
        out[Piece((), frozenset(), value)] = None
    return out


def _power_sign(p: normal.Power, facts: Facts) -> int | None:
    return sign(Term(Fraction(1), (), frozenset(), (p,)), known_signs(facts))


def _hoist_factors(pieces: Sequence[Piece], facts: Facts) -> NF:
    """Replace max(c a, c b) by c max(a, b) for c > 0, and for c = 0 if a value exists."""
    is_inhabited = any(
        not p.guards and all(facts.holds(ge(v.extent - 1)) for v in p.bound) for p in pieces
    )
    shared = common_powers([p.value for p in pieces], frozenset(v for p in pieces for v in p.bound))
    signs = {p: _power_sign(p, facts) for p in shared}
    scale = tuple(
        p for p in shared if signs[p] == 2 or (signs[p] == 1 and p[1] > 0 and is_inhabited)
    )
    if not scale:
        return _max_or_monotone(pieces, facts)
    rest = [Piece(p.bound, p.guards, divide_by_powers(p.value, scale)) for p in pieces]
    out = max_of_pieces(rest, facts)
    return multiply(
        normal.from_terms(facts.context, (Term(Fraction(1), (), frozenset(), scale),)), out, facts
    )


def _max_or_monotone(pieces: Sequence[Piece], facts: Facts) -> NF:
    grown = _hoist_monotone(pieces, facts)
    return (
        power(normal.maximum(frozenset(map(substitute.close_piece, pieces))))
        if grown is None
        else grown
    )


def _is_negative_infinity(a: NF) -> bool:
    """True for -inf."""
    one = a.single_term
    return (
        one is not None
        and one.coefficient < 0
        and len(one.powers) == 1
        and isinstance(one.powers[0][0], normal.Fn)
        and one.powers[0][0].name == INFINITY
    )


def _flatten(p: Piece, facts: Facts, out: list[Piece]) -> None:
    """Flatten nested maxima: max(c * max(a, b) + r) is max(c a + r, c b + r), c > 0."""
    for t in p.value.terms:
        if t.bound or t.guards or t.coefficient < 0:
            continue
        f = next((f for f, e in t.powers if isinstance(f, Max) and e == 1), None)
        if f is None:
            continue
        beside = tuple(q for q in t.powers if q[0] is not f)
        if beside and sign(Term(Fraction(1), (), frozenset(), beside), known_signs(facts)) != 2:
            continue
        scale = normal.from_terms(facts.context, (Term(t.coefficient, (), frozenset(), beside),))
        rest = normal.subtract(p.value, normal.from_terms(facts.context, (t,)))
        for q in f.pieces:
            inner = open_piece(q)
            value = normal.add(multiply(scale, inner.value, facts), rest)
            _flatten(Piece(p.bound + inner.bound, p.guards | inner.guards, value), facts, out)
        return
    out.append(p)


def _common_terms(pieces: list[Piece]) -> NF:
    """Return the terms common to all pieces that do not depend on their bound variables."""
    shared: dict[object, Term] | None = None
    for p in pieces:
        own = frozenset(p.bound)
        here = {
            t: t
            for t in p.value.terms
            if normal.term_free_vars(t).isdisjoint(own) and (t.powers or t.bound)
        }
        shared = here if shared is None else {t: t for t in shared if t in here}  # type: ignore
    if len(pieces) == 1 and not pieces[0].bound and not pieces[0].guards:
        return normal.zero(pieces[0].value.context)
    return normal.from_terms(pieces[0].value.context, shared.values() if shared else ())


def _hoist_monotone(pieces: Sequence[Piece], facts: Facts) -> NF | None:
    """Return a maximum of values of one monotone function as that function of a maximum (or
    minimum): exp, 1 / x for positive x, roots and others. None if there is no such function."""
    plus = _added_constant(pieces[0].value)
    if plus and all(_added_constant(p.value) == plus for p in pieces):
        rest = [
            Piece(p.bound, p.guards, normal.subtract(p.value, normal.constant(facts.context, plus)))
            for p in pieces
        ]
        found = _hoist_monotone(rest, facts)
        return None if found is None else normal.add(found, normal.constant(facts.context, plus))
    values = [one for p in pieces if (one := p.value.single_term) is not None and one.powers]
    c = abs(values[0].coefficient) if values else Fraction(0)
    if len(values) < len(pieces) or any(abs(t.coefficient) != c for t in values):
        return None

    def greatest(args: Sequence[NF], up: bool) -> NF:
        scale = 1 if up else -1
        scaled = [
            Piece(p.bound, p.guards, normal.scale(a, scale))
            for p, a in zip(pieces, args, strict=True)
        ]
        return normal.scale(max_of_pieces(scaled, facts), scale)

    name = odd_function_name(values[0])
    if name and all(odd_function_name(t) == name for t in values):
        args = [normal.scale(function_argument(t), t.coefficient / c) for t in values]
        return hoist_guards(
            [greatest(args, True)], facts, lambda a, _: normal.scale(odd_function(name, a[0]), c)
        )
    up = values[0].coefficient > 0
    if any((t.coefficient > 0) != up for t in values):
        return None
    c = c if up else -c
    if all(isinstance(f, normal.Exp) for t in values for f, _ in t.powers):
        k = abs(values[0].powers[0][1])
        args = [
            normal.add_all(
                facts.context,
                (normal.scale(f.argument, e / k) for f, e in t.powers if isinstance(f, normal.Exp)),
            )
            for t in values
        ]
        return normal.scale(exponential(normal.scale(greatest(args, up), k), facts), c)
    if all(e == -1 for t in values for f, e in t.powers if isinstance(f, normal.Sum)) and all(
        map(is_positive_reciprocal, values)
    ):
        args = [expand_reciprocal(t, facts) for t in values]
        return normal.scale(reciprocal(greatest(args, not up), facts), c)
    if any(len(t.powers) > 1 for t in values):
        return None
    (f, _), *_ = values[0].powers
    name = f.name if isinstance(f, normal.Fn) and f.name in INCREASING and len(f.args) == 1 else ""
    if name and all(
        isinstance(g, normal.Fn) and g.name == name and e == 1 for t in values for g, e in t.powers
    ):
        top = greatest([function_argument(t) for t in values], up)
        return hoist_guards(
            [top], facts, lambda a, _: normal.scale(power(normal.fn(name, (a[0],))), c)
        )
    return None


def _added_constant(a: NF) -> Fraction:
    """Return the constant term."""
    plain = (t.coefficient for t in a.terms if not (t.bound or t.guards or t.powers))
    return next(plain, Fraction(0))
