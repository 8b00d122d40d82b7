"""Terms and pieces under facts: decided guards, variables fixed by equations, ranges.

sum over k < n + m where k < n of f(k)        sum over k < n of f(k) sum over k < n + m where k >= n
of f(k)       sum over k < m of f(k + n) sum over k < n where k == j of f(k)           f(j) where j
< n
"""

from __future__ import annotations

from collections.abc import Iterable

from superopt.verifier import normal as N
from superopt.verifier import poly as P
from superopt.verifier import substitute as S
from superopt.verifier.facts import Facts, Guard, coarser, eq, ge, negated, nonneg
from superopt.verifier.normal import NF, Piece, Term
from superopt.verifier.poly import Poly, Quot, Var

# --- quotients ------------------------------------------------------------------------------------


def quotient(p: Poly, q: Poly, facts: Facts | None = None) -> Poly:
    """Return p // q for q >= 1."""
    known = facts or NOTHING
    if known.equations:
        p = _by_equations(p, q, known)
    whole, rest = P.divided(p, q)
    if not rest.terms:
        return whole
    if len(q.terms) > 1:
        more, left = P.divided_by_sum(p, q)
        for beyond in (0, -1, 1) if more.terms else ():  # 2 n is less than 2 n + 2
            own = left - q * beyond
            if known.holds(ge(own)) and known.holds(ge(q - 1 - own)):
                return more + beyond
        if more.vars:
            return more + quotient(left, q, facts)
    if known.holds(ge(rest)) and known.holds(ge(q - 1 - rest)):
        return whole
    if rest.value is not None and rest.value < 0 and known.holds(ge(q + rest)):
        return whole - 1
    near = _as_known(rest, q, known)
    if near is not None:
        return whole + near
    inner = _nested(rest, q, known)
    return whole + (P.of(P.quot_atom(rest, q)) if inner is None else inner)


def _as_known(p: Poly, q: Poly, facts: Facts) -> Poly | None:
    """Return p // q as an equal quotient by q that occurs in the facts, else None."""
    for a in facts.quotients:
        left = p - P.of(a) * q if a.q is q and a.p is not p else None
        if left is not None and facts.holds(ge(left)) and facts.holds(ge(q - 1 - left)):
            return P.of(a)
    return None


def _by_equations(p: Poly, q: Poly, facts: Facts) -> Poly:
    """Replace products in `p` by equal products that q divides: n * m for a * b before a division
    by m."""
    if len(q.terms) != 1:
        return p
    ((m, c),) = q.terms
    for old, new in facts.equations:
        if c == 1 and P.within(m, new) and not P.within(m, old):
            p = P.replaced(p, old, new)
    return p


def in_one_form(p: Poly, facts: Facts) -> Poly:
    """Return `p` with one representative for products that are equal."""
    for old, new in facts.equations:
        if P.made({old: 1}).number > P.made({new: 1}).number:
            p = P.replaced(p, old, new)
    return p


def _nested(p: Poly, q: Poly, facts: Facts) -> Poly | None:
    """Simplify (a // b) // c to a // (b c), and (g a + r) // (g b) to (a + r // g) // b."""
    if len(p.terms) == 1:
        ((m, c),) = p.terms
        if c == 1 and len(m) == 1 and isinstance(m[0], Quot):
            return quotient(m[0].p, m[0].q * q, facts)
    if len(q.terms) != 1:
        return None
    ((qm, qc),) = q.terms
    found: Poly | None = None
    for g in _parts(qm, qc):
        whole, rest = P.divided(p, g)
        if not whole.terms:
            continue
        smaller, none = P.divided(q, g)
        if none.terms or smaller is q:
            continue
        if facts.holds(ge(rest), STRONG[0]) and facts.holds(ge(g - 1 - rest), STRONG[0]):
            return quotient(whole, smaller, facts)
        if found is None and g.value is None:  # a numeric factor would only change the notation
            found = quotient(whole + quotient(rest, g, facts), smaller, facts)
    return found


def _parts(m: P.Mono, c: int) -> Iterable[Poly]:
    """Yield the proper factors of a monomial."""
    for k in range(1, 1 << len(m)):
        atoms = tuple(a for n, a in enumerate(m) if k >> n & 1)
        if len(atoms) < len(m) or c != 1:
            yield P.made({atoms: 1})
            yield from (P.made({atoms: d}) for d in range(2, c) if c % d == 0)
    if c != 1 and m:
        yield P.const(c)
    if not m:
        yield from (P.const(d) for d in range(2, c) if c % d == 0)


NOTHING = Facts()


def forget() -> None:
    """Clear the answers without hypotheses and draw new samples."""
    NOTHING.known.clear()
    NOTHING.weakly.clear()
    NOTHING.children.clear()
    NOTHING.order_known.clear()
    NOTHING.samples = None


STRONG = [False]  # True while guards may use Z3: only after a first attempt failed
S.QUOTIENT[0] = quotient

# --- terms ----------------------------------------------------------------------------------------


def simplified(t: Term, facts: Facts) -> list[Term]:
    """Return closed terms whose sum is the open term `t` where `facts` hold."""
    body = settled(t.bound, t.guards, facts)
    if body is None:
        return []
    bound, guards, env = body
    powers = S.powers_at(t.powers, env) if env else t.powers
    used: set[Var] = set()
    for f, _ in powers:
        used |= f.free
    for g in guards:
        used |= g.p.vars
    idle = [v for v in bound if v not in used and facts.holds(ge(v.extent))]
    kept = tuple(v for v in bound if v not in idle)
    if not idle:
        return [S.close(Term(t.coefficient, kept, guards, powers))]
    count = P.const(1)
    for v in idle:
        count = count * v.extent
    out: list[Term] = []
    for one in N.number(count).terms:
        both = N.merged(powers, one.powers)
        assert both is not None
        out.append(S.close(Term(t.coefficient * one.coefficient, kept, guards, both)))
    return out


_Body = tuple[tuple[Var, ...], frozenset[Guard], dict[Var, Poly]]


def settled(bound: tuple[Var, ...], guards: frozenset[Guard], facts: Facts) -> _Body | None:
    """Return canonical bound variables, guards and substitutions; None if no value satisfies
    them."""
    env: dict[Var, Poly] = {}
    while True:
        rest = _pruned(guards, facts)
        if rest is None:
            return None
        guards = rest
        step = _step(bound, guards, facts)
        if step is None:
            return bound, guards, env
        if isinstance(step, bool):
            return None
        bound, extra, change, gone = step
        env = {v: S.poly_at(p, change) for v, p in env.items()} | change
        kept = [g for g in guards if g not in gone]
        guards = frozenset(S.guard_at(g, change) for g in kept) | extra
        guards = frozenset(eq(g.p) if g.kind == "eq" else g for g in guards)


def _pruned(guards: frozenset[Guard], facts: Facts) -> frozenset[Guard] | None:
    """Drop guards that follow from the facts and the other guards; None if they are
    contradictory."""
    rest: list[Guard] = []
    for g in sorted(guards, key=lambda g: (g.kind, g.p.number)):
        g = coarser(g, facts, STRONG[0])
        if facts.holds(g, STRONG[0]):
            continue
        if facts.holds(negated(g), STRONG[0]):
            return None
        rest.append(g)
    if len(rest) < 2:
        return frozenset(rest)
    n = 0
    while n < len(rest):
        others = [g for k, g in enumerate(rest) if k != n and _linked(g, rest[n])]
        if others:
            more = facts.plus(*others)
            if more.holds(negated(rest[n]), STRONG[0]):
                return None
            if more.holds(rest[n], STRONG[0]):
                del rest[n]
                continue
        n += 1
    return frozenset(rest)


def _linked(a: Guard, b: Guard) -> bool:
    return not a.p.vars.isdisjoint(b.p.vars) or not (a.p.vars or b.p.vars)


_Step = tuple[tuple[Var, ...], frozenset[Guard], dict[Var, Poly], frozenset[Guard]]
NO_GUARDS: frozenset[Guard] = frozenset()


def _step(bound: tuple[Var, ...], guards: frozenset[Guard], facts: Facts) -> _Step | bool | None:
    """Fix or move one variable: (variables, new guards, substitution, guards used). False:
    empty."""
    own = frozenset(bound)
    for v in bound:
        n = v.extent.value
        if n is not None and n <= 0:
            return False
        if n == 1:
            return _without(bound, v), NO_GUARDS, {v: P.const(0)}, NO_GUARDS
    for g in guards:
        if g.kind != "eq":
            continue
        for v in bound:
            split = P.linear_in(g.p, v)
            if split is None or split[0].value not in (1, -1):
                continue
            value = split[1] if split[0].value == -1 else -split[1]
            extra = frozenset((ge(value), ge(v.extent - 1 - value)))
            return _without(bound, v), extra, {v: value}, frozenset((g,))
    for v in bound:
        low: list[tuple[Guard, Poly]] = []
        high: list[tuple[Guard, Poly]] = []
        for g in guards:
            if g.kind != "ge" or v not in g.p.vars:
                continue
            split = P.linear_in(g.p, v)
            if split is None or not own.isdisjoint(split[1].vars):
                continue
            if split[0].value == 1:
                low.append((g, -split[1]))
            elif split[0].value == -1:
                high.append((g, split[1] + 1))
        for g, end in high:
            if facts.holds(ge(v.extent - end)):
                w = P.fresh(end)
                return _swapped(bound, v, w), NO_GUARDS, {v: P.of(w)}, frozenset((g,))
        for g, begin in low:
            if facts.holds(ge(begin)):
                w = P.fresh(v.extent - begin)
                return _swapped(bound, v, w), NO_GUARDS, {v: P.of(w) + begin}, frozenset((g,))
    return None


def _without(bound: tuple[Var, ...], v: Var) -> tuple[Var, ...]:
    return tuple(w for w in bound if w is not v)


def _swapped(bound: tuple[Var, ...], v: Var, w: Var) -> tuple[Var, ...]:
    return tuple(w if u is v else u for u in bound)


def simplified_piece(p: Piece, facts: Facts) -> Piece | None:
    """Return the closed piece of an open one under facts; None if it is empty."""
    body = settled(p.bound, p.guards, facts)
    if body is None:
        return None
    bound, guards, env = body
    value = S.form_at(p.value, env) if env else p.value
    used = set(value.vars)
    for g in guards:
        used |= g.p.vars
    kept = tuple(v for v in bound if v in used or not facts.holds(ge(v.extent - 1)))
    for v in kept:
        if v in value.vars:
            continue
        own = frozenset(g for g in guards if v in g.p.vars)
        apart = all(g.p.vars.isdisjoint(w for w in bound if w is not v) for g in own)
        if apart and inhabited(v, own, facts.plus(*(guards - own))):
            kept, guards = _without(kept, v), guards - own
    return S.close_piece(Piece(kept, guards, value))


def inhabited(v: Var, guards: frozenset[Guard], facts: Facts) -> bool:
    """True if some value of v is shown to satisfy the guards."""

    def works(value: Poly, more: Facts) -> bool:
        env = {v: value}
        wanted = (ge(value), ge(v.extent - 1 - value), *(S.guard_at(g, env) for g in guards))
        return all(more.holds(g) for g in wanted)

    zero = P.const(0)
    if works(zero, facts):
        return True
    for g in guards:
        split = P.linear_in(g.p, v)
        if g.kind != "ge" or split is None or not nonneg(split[0] - 1):
            continue
        step, low = split[0], -split[1]
        at, before = facts.plus(ge(low)), facts.plus(ge(-low - 1))
        if not before.impossible() and not works(zero, before):
            continue
        if at.impossible():
            return True
        if step.value == 1:
            first, there = low, at
        else:  # the first multiple of `step` that is at least `low`
            first = P.sym("first", 0)
            there = at.plus(ge(first * step - low)).plus(ge(low + step - 1 - first * step))
        if works(first, there):
            return True
    return False


def opened_piece(p: Piece) -> Piece:
    if not p.bound:
        return p
    env, bound = S.fresh_for(p.bound)
    guards = frozenset(S.guard_at(g, env) for g in p.guards)
    return Piece(bound, guards, S.form_at(p.value, env))


# --- sums and products under facts ----------------------------------------------------------------


def times(a: NF, b: NF, facts: Facts) -> NF:
    """Return the expanded product."""
    ca, cb = a.constant, b.constant
    if ca is not None:
        return N.scaled(b, ca)
    if cb is not None:
        return N.scaled(a, cb)
    out: list[Term] = []
    for s in a.terms:
        for t in b.terms:
            u, v = S.opened(s), S.opened(t)
            powers = N.merged(u.powers, v.powers)
            assert powers is not None
            product = Term(
                u.coefficient * v.coefficient, u.bound + v.bound, u.guards | v.guards, powers
            )
            if product.bound or product.guards:
                out += simplified(product, facts)
            else:
                out.append(product)
    return N.form(out)


def summed(a: NF, bound: tuple[Var, ...], facts: Facts) -> NF:
    """Return the sum of `a` over fresh variables."""
    out: list[Term] = []
    for t in a.terms:
        u = S.opened(t)
        out += simplified(Term(u.coefficient, u.bound + bound, u.guards, u.powers), facts)
    return N.form(out)


def where(a: NF, g: Guard, facts: Facts) -> NF:
    """Return `a` where `g` holds, else 0."""
    out: list[Term] = []
    for t in a.terms:
        u = S.opened(t)
        out += simplified(Term(u.coefficient, u.bound, u.guards | {g}, u.powers), facts)
    return N.form(out)


def under(a: NF, facts: Facts) -> NF:
    """Simplify the terms of `a` under more facts; the insides of factors stay."""
    if not any(t.guards or t.bound for t in a.terms):
        return a
    out: list[Term] = []
    for t in a.terms:
        if t.guards or t.bound:
            out += simplified(S.opened(t), facts)
        else:
            out.append(t)
    return N.form(out)


def outer_guard(a: NF) -> Guard | None:
    """Return a guard that does not depend on the bound variables of its term, else None."""
    for t in a.terms:
        own = frozenset(t.bound)
        for g in sorted(t.guards):
            if g.p.vars.isdisjoint(own):
                return g
    return None


__all__ = ["nonneg", "quotient", "simplified", "summed", "times", "under", "where"]
