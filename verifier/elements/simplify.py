"""Terms and pieces under facts: decided guards, variables fixed by equations, ranges.

sum over k < n + m where k < n of f(k)        sum over k < n of f(k) sum over k < n + m where k >= n
of f(k)       sum over k < m of f(k + n) sum over k < n where k == j of f(k)           f(j) where j
< n
"""

from __future__ import annotations

from superopt.verifier.elements import normal, substitute
from superopt.verifier.elements.normal import NF, Piece, Term
from superopt.verifier.poly import polynomial
from superopt.verifier.poly.facts import Facts, Guard, coarsen, eq, ge, is_nonnegative, negate
from superopt.verifier.poly.polynomial import Poly, Var

# --- terms ----------------------------------------------------------------------------------------


def simplify_term(t: Term, facts: Facts) -> list[Term]:
    """Return closed terms whose sum is the open term `t` where `facts` hold."""
    body = normalize_domain(t.bound, t.guards, facts)
    if body is None:
        return []
    bound, guards, env = body
    powers = substitute.powers_at(t.powers, env) if env else t.powers
    used: set[Var] = set()
    for f, _ in powers:
        used |= f.free_vars
    for g in guards:
        used |= g.p.vars
    idle = [v for v in bound if v not in used and facts.holds(ge(v.extent))]
    kept = tuple(v for v in bound if v not in idle)
    if not idle:
        return [substitute.close(Term(t.coefficient, kept, guards, powers))]
    count = polynomial.const(facts.context, 1)
    for v in idle:
        count = count * v.extent
    out: list[Term] = []
    for one in normal.from_poly(count).terms:
        both = normal.merge_powers(powers, one.powers)
        assert both is not None
        out.append(substitute.close(Term(t.coefficient * one.coefficient, kept, guards, both)))
    return out


_Domain = tuple[tuple[Var, ...], frozenset[Guard], dict[Var, Poly]]


def normalize_domain(
    bound: tuple[Var, ...], guards: frozenset[Guard], facts: Facts
) -> _Domain | None:
    """Return canonical bound variables, guards and substitutions; None if no value satisfies
    them."""
    env: dict[Var, Poly] = {}
    while True:
        rest = _prune_guards(guards, facts)
        if rest is None:
            return None
        guards = rest
        step = _domain_step(bound, guards, facts)
        if step is None:
            return bound, guards, env
        if isinstance(step, bool):
            return None
        bound, extra, change, gone = step
        env = {v: substitute.poly_at(p, change) for v, p in env.items()} | change
        kept = [g for g in guards if g not in gone]
        guards = frozenset(substitute.guard_at(g, change) for g in kept) | extra
        guards = frozenset(eq(g.p) if g.kind == "eq" else g for g in guards)


def _prune_guards(guards: frozenset[Guard], facts: Facts) -> frozenset[Guard] | None:
    """Drop guards that follow from the facts and the other guards; None if they are
    contradictory."""
    use_solver = facts.context.use_solver
    rest: list[Guard] = []
    for g in sorted(guards, key=lambda g: (g.kind, g.p.number)):
        g = coarsen(g, facts, use_solver)
        if facts.holds(g, use_solver):
            continue
        if facts.holds(negate(g), use_solver):
            return None
        rest.append(g)
    if len(rest) < 2:
        return frozenset(rest)
    n = 0
    while n < len(rest):
        others = [g for k, g in enumerate(rest) if k != n and _share_vars(g, rest[n])]
        if others:
            more = facts.with_guards(*others)
            if more.holds(negate(rest[n]), use_solver):
                return None
            if more.holds(rest[n], use_solver):
                del rest[n]
                continue
        n += 1
    return frozenset(rest)


def _share_vars(a: Guard, b: Guard) -> bool:
    return not a.p.vars.isdisjoint(b.p.vars) or not (a.p.vars or b.p.vars)


_DomainStep = tuple[tuple[Var, ...], frozenset[Guard], dict[Var, Poly], frozenset[Guard]]
NO_GUARDS: frozenset[Guard] = frozenset()


def _domain_step(
    bound: tuple[Var, ...], guards: frozenset[Guard], facts: Facts
) -> _DomainStep | bool | None:
    """Fix or move one variable: (variables, new guards, substitution, guards used). False:
    empty."""
    for v in bound:
        n = v.extent.value
        if n is not None and n <= 0:
            return False
        if n == 1:
            return _drop_var(bound, v), NO_GUARDS, {v: polynomial.const(v.context, 0)}, NO_GUARDS
    return _solve_equation(bound, guards) or _narrow_range(bound, guards, facts)


def _solve_equation(bound: tuple[Var, ...], guards: frozenset[Guard]) -> _DomainStep | None:
    """Fix a variable that an equation determines."""
    for g in guards:
        for v in bound if g.kind == "eq" else ():
            split = polynomial.linear_coefficients(g.p, v)
            if split is None or split[0].value not in (1, -1):
                continue
            value = split[1] if split[0].value == -1 else -split[1]
            extra = frozenset((ge(value), ge(v.extent - 1 - value)))
            return _drop_var(bound, v), extra, {v: value}, frozenset((g,))
    return None


def _narrow_range(
    bound: tuple[Var, ...], guards: frozenset[Guard], facts: Facts
) -> _DomainStep | None:
    """Replace a variable and one of its bounds by a variable with a smaller extent."""
    own = frozenset(bound)
    for v in bound:
        low: list[tuple[Guard, Poly]] = []
        high: list[tuple[Guard, Poly]] = []
        for g in guards:
            if g.kind != "ge" or v not in g.p.vars:
                continue
            split = polynomial.linear_coefficients(g.p, v)
            if split is None or not own.isdisjoint(split[1].vars):
                continue
            if split[0].value == 1:
                low.append((g, -split[1]))
            elif split[0].value == -1:
                high.append((g, split[1] + 1))
        for g, end in high:
            if facts.holds(ge(v.extent - end)):
                w = polynomial.fresh_var(end)
                value = polynomial.atom_poly(w)
                return _replace_var(bound, v, w), NO_GUARDS, {v: value}, frozenset((g,))
        for g, begin in low:
            if facts.holds(ge(begin)):
                w = polynomial.fresh_var(v.extent - begin)
                value = polynomial.atom_poly(w) + begin
                return _replace_var(bound, v, w), NO_GUARDS, {v: value}, frozenset((g,))
    return None


def _drop_var(bound: tuple[Var, ...], v: Var) -> tuple[Var, ...]:
    return tuple(w for w in bound if w is not v)


def _replace_var(bound: tuple[Var, ...], v: Var, w: Var) -> tuple[Var, ...]:
    return tuple(w if u is v else u for u in bound)


def simplify_piece(p: Piece, facts: Facts) -> Piece | None:
    """Return the closed piece of an open one under facts; None if it is empty."""
    body = normalize_domain(p.bound, p.guards, facts)
    if body is None:
        return None
    bound, guards, env = body
    value = substitute.form_at(p.value, env) if env else p.value
    used = set(value.vars)
    for g in guards:
        used |= g.p.vars
    kept = tuple(v for v in bound if v in used or not facts.holds(ge(v.extent - 1)))
    for v in kept:
        if v in value.vars:
            continue
        own = frozenset(g for g in guards if v in g.p.vars)
        apart = all(g.p.vars.isdisjoint(w for w in bound if w is not v) for g in own)
        if apart and is_inhabited(v, own, facts.with_guards(*(guards - own))):
            kept, guards = _drop_var(kept, v), guards - own
    return substitute.close_piece(Piece(kept, guards, value))


def is_inhabited(v: Var, guards: frozenset[Guard], facts: Facts) -> bool:
    """True if some value of v is shown to satisfy the guards."""

    def works(value: Poly, more: Facts) -> bool:
        env = {v: value}
        wanted = (
            ge(value),
            ge(v.extent - 1 - value),
            *(substitute.guard_at(g, env) for g in guards),
        )
        return all(more.holds(g) for g in wanted)

    zero = polynomial.const(facts.context, 0)
    if works(zero, facts):
        return True
    for g in guards:
        split = polynomial.linear_coefficients(g.p, v)
        if g.kind != "ge" or split is None or not is_nonnegative(split[0] - 1):
            continue
        step, low = split[0], -split[1]
        at, before = facts.with_guards(ge(low)), facts.with_guards(ge(-low - 1))
        if not before.is_last_contradicted() and not works(zero, before):
            continue
        if at.is_last_contradicted():
            return True
        if step.value == 1:
            first, there = low, at
        else:  # the first multiple of `step` that is at least `low`
            first = polynomial.symbol(facts.context, "first", 0)
            there = at.with_guards(ge(first * step - low)).with_guards(
                ge(low + step - 1 - first * step)
            )
        if works(first, there):
            return True
    return False


def is_inhabited_somewhere(condition: NF, bound: tuple[Var, ...], facts: Facts) -> bool:
    """True if the condition, 1 or 0, is shown to be 1 for some values of the variables: it consists
    of guards that each depend on one of them."""
    if len(condition.terms) != 1:
        return False
    (t,) = condition.terms
    if t.coefficient != 1 or t.powers or t.bound:
        return False
    own = {v: frozenset(g for g in t.guards if v in g.p.vars) for v in bound}
    if sum(map(len, own.values())) != len(t.guards):
        return False
    return all(is_inhabited(v, guards, facts) for v, guards in own.items())


def open_piece(p: Piece) -> Piece:
    if not p.bound:
        return p
    env, bound = substitute.fresh_vars(p.bound)
    guards = frozenset(substitute.guard_at(g, env) for g in p.guards)
    return Piece(bound, guards, substitute.form_at(p.value, env))


# --- sums and products under facts ----------------------------------------------------------------


def multiply(a: NF, b: NF, facts: Facts) -> NF:
    """Return the expanded product."""
    ca, cb = a.constant, b.constant
    if ca is not None:
        return normal.scale(b, ca)
    if cb is not None:
        return normal.scale(a, cb)
    out: list[Term] = []
    for s in a.terms:
        for t in b.terms:
            u, v = substitute.open_term(s), substitute.open_term(t)
            powers = normal.merge_powers(u.powers, v.powers)
            assert powers is not None
            product = Term(
                u.coefficient * v.coefficient, u.bound + v.bound, u.guards | v.guards, powers
            )
            if product.bound or product.guards:
                out += simplify_term(product, facts)
            else:
                out.append(product)
    return normal.from_terms(a.context, out)


def sum_over(a: NF, bound: tuple[Var, ...], facts: Facts) -> NF:
    """Return the sum of `a` over fresh variables."""
    out: list[Term] = []
    for t in a.terms:
        u = substitute.open_term(t)
        out += simplify_term(Term(u.coefficient, u.bound + bound, u.guards, u.powers), facts)
    return normal.from_terms(a.context, out)


def restrict(a: NF, g: Guard, facts: Facts) -> NF:
    """Return `a` where `g` holds, else 0."""
    out: list[Term] = []
    for t in a.terms:
        u = substitute.open_term(t)
        out += simplify_term(Term(u.coefficient, u.bound, u.guards | {g}, u.powers), facts)
    return normal.from_terms(a.context, out)


def simplify_under(a: NF, facts: Facts) -> NF:
    """Simplify the terms of `a` under more facts; the insides of factors stay."""
    if not any(t.guards or t.bound for t in a.terms):
        return a
    out: list[Term] = []
    for t in a.terms:
        if t.guards or t.bound:
            out += simplify_term(substitute.open_term(t), facts)
        else:
            out.append(t)
    return normal.from_terms(a.context, out)


def outer_guard(a: NF) -> Guard | None:
    """Return a guard that does not depend on the bound variables of its term, else None."""
    for t in a.terms:
        own = frozenset(t.bound)
        for g in sorted(t.guards):
            if g.p.vars.isdisjoint(own):
                return g
    return None
