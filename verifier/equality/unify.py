"""Unification: substitutions for bound variables that make two products, or two values, equal.

x[u, v + 1] against x[i, k - p]      u = i, v = k - p - 1 x[K * u + v] against x[k], v < K     u = k
// K, v = k % K
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from superopt.verifier.elements import normal, substitute
from superopt.verifier.elements.normal import NF, Factor, Piece, Power, Term
from superopt.verifier.elements.quotients import quotient
from superopt.verifier.poly import polynomial
from superopt.verifier.poly.guards import Guard
from superopt.verifier.poly.polynomial import Poly, Var

Equations = tuple[tuple[Poly, Poly], ...]
MAX_PAIRINGS = 24  # pairings tried


def unify_powers(ps: Sequence[Power], qs: Sequence[Power]) -> Iterator[Equations]:
    """Yield the index equations under which the product `ps` is `qs`, for each pairing of
    factors."""
    if len(ps) != len(qs):
        return
    if not ps:
        yield ()
        return
    (f, e), rest = ps[0], ps[1:]
    for k, (g, x) in enumerate(qs):
        if x == e:
            for first in unify_factors(f, g):
                for others in unify_powers(rest, (*qs[:k], *qs[k + 1 :])):
                    yield (*first, *others)


def unify_factors(f: Factor, g: Factor) -> Iterator[Equations]:
    """Yield the equations under which the factor f is g."""
    f.context.tick()
    if f is g:
        yield ()
        if not isinstance(f, normal.Read):
            return
    match f, g:
        case normal.Read(), normal.Read() if f.name == g.name and len(f.index) == len(g.index):
            if f is not g:
                yield tuple(zip(f.index, g.index, strict=True))
        case normal.Num(), normal.Num():
            yield ((polynomial.atom_poly(f.atom), polynomial.atom_poly(g.atom)),)
        case normal.Fn(), normal.Fn() if f.name == g.name and len(f.args) == len(g.args):
            yield from unify_form_lists(f.args, g.args)
        case normal.Exp(), normal.Exp():
            yield from unify_forms(f.argument, g.argument)
        case normal.Sum(), normal.Sum():
            yield from unify_forms(f.argument, g.argument)
        case normal.Truth(), normal.Truth() if f.fn == g.fn:
            yield from unify_forms(f.argument, g.argument)
        case normal.Max(), normal.Max() if len(f.pieces) == len(g.pieces):
            yield from unify_pieces(f.pieces, g.pieces)
        case normal.Prod(), normal.Prod():
            yield from unify_pieces((f.piece,), (g.piece,))
        case _:
            return


def unify_form_lists(ps: Sequence[NF], qs: Sequence[NF]) -> Iterator[Equations]:
    if not ps:
        yield ()
        return
    for first in unify_forms(ps[0], qs[0]):
        for rest in unify_form_lists(ps[1:], qs[1:]):
            yield (*first, *rest)


def unify_forms(a: NF, b: NF) -> Iterator[Equations]:
    """Yield the equations under which the form a is b, term by term."""
    if a is b:
        yield ()
        return
    if len(a.terms) == len(b.terms):
        yield from _unify_terms(a.terms, b.terms)


def _unify_terms(ps: Sequence[Term], qs: Sequence[Term]) -> Iterator[Equations]:
    if not ps:
        yield ()
        return
    p = ps[0]
    for k, q in enumerate(qs):
        if p.coefficient != q.coefficient or len(p.bound) != len(q.bound):
            continue
        if len(p.guards) != len(q.guards):
            continue
        left, right, extents = _align_vars(p.bound, q.bound)
        u = Term(
            p.coefficient,
            (),
            _substitute_guards(p.guards, left),
            substitute.powers_at(p.powers, left),
        )
        w = Term(
            q.coefficient,
            (),
            _substitute_guards(q.guards, right),
            substitute.powers_at(q.powers, right),
        )
        for inner in unify_powers(u.powers, w.powers):
            more = _unify_guards(u.guards, w.guards)
            if more is None:
                continue
            for rest in _unify_terms(ps[1:], (*qs[:k], *qs[k + 1 :])):
                yield (*extents, *more, *inner, *rest)


def _substitute_guards(guards: frozenset[Guard], env: substitute.Env) -> frozenset[Guard]:
    return frozenset(substitute.guard_at(g, env) for g in guards)


def _align_vars(
    ps: tuple[Var, ...], qs: tuple[Var, ...]
) -> tuple[dict[Var, Poly], dict[Var, Poly], Equations]:
    """Replace the bound variables of both sides by the same fresh ones; extents become
    equations."""
    left: dict[Var, Poly] = {}
    right: dict[Var, Poly] = {}
    extents: list[tuple[Poly, Poly]] = []
    for v, w in zip(ps, qs, strict=True):
        new = polynomial.atom_poly(polynomial.fresh_var(w.extent))
        left[v] = right[w] = new
        if v.extent is not w.extent:
            extents.append((v.extent, w.extent))
    return left, right, tuple(extents)


def _unify_guards(ps: frozenset[Guard], qs: frozenset[Guard]) -> Equations | None:
    out: list[tuple[Poly, Poly]] = []
    for p, q in zip(sorted(ps), sorted(qs), strict=True):
        if p is q or p == q:
            continue
        if p.kind != q.kind:
            return None
        out.append((p.p, q.p))
    return tuple(out)


def unify_pieces(ps: Sequence[Piece], qs: Sequence[Piece]) -> Iterator[Equations]:
    if not ps:
        yield ()
        return
    p = ps[0]
    for k, q in enumerate(qs):
        if len(p.bound) != len(q.bound) or len(p.guards) != len(q.guards):
            continue
        left, right, extents = _align_vars(p.bound, q.bound)
        more = _unify_guards(
            _substitute_guards(p.guards, left), _substitute_guards(q.guards, right)
        )
        if more is None:
            continue
        for inner in unify_forms(
            substitute.form_at(p.value, left), substitute.form_at(q.value, right)
        ):
            for rest in unify_pieces(ps[1:], (*qs[:k], *qs[k + 1 :])):
                yield (*extents, *more, *inner, *rest)


# --- solving --------------------------------------------------------------------------------------


def solve_equations(
    equations: Equations, unknown: Sequence[Var], any_solution: bool = False
) -> dict[Var, Poly] | None:
    """Solve the equations for all unknowns of the left sides; None if they do not determine them.
    any_solution: for u + v == q any u and v will do.

    The result may violate some equations: the caller compares.
    """
    env: dict[Var, Poly] = {}
    left = set(unknown)
    todo = [(p, q) for p, q in equations]
    progress = True
    while progress and left:
        progress = False
        for p, q in todo:
            here = substitute.poly_at(p, env)
            free = [v for v in here.vars if v in left]
            if not free:
                continue
            found = _solve_one(here, q, free) or (
                _solve_two(here, q, free) if len(free) == 2 else None
            )
            if not found and any_solution and len(free) == 2:
                found = _solve_any(here, q, free)
            if found:
                env = {v: substitute.poly_at(e, found) for v, e in env.items()} | found
                left -= found.keys()
                progress = True
    return None if left else env


def _solve_one(p: Poly, q: Poly, free: Sequence[Var]) -> dict[Var, Poly] | None:
    if len(free) != 1:
        return None
    split = polynomial.linear_coefficients(p, free[0])
    if split is None:
        return None
    a, b = split
    if a.value in (1, -1):
        return {free[0]: (q - b) if a.value == 1 else (b - q)}
    whole, rest = polynomial.divide(q - b, a)
    return {free[0]: whole} if not rest.terms and a.terms else None


def _solve_two(p: Poly, q: Poly, free: Sequence[Var]) -> dict[Var, Poly] | None:
    """Solve K * u + v == q with 0 <= v < K: quotient and remainder."""
    for u, v in ((free[0], free[1]), (free[1], free[0])):
        first = polynomial.linear_coefficients(p, u)
        if first is None:
            continue
        second = polynomial.linear_coefficients(first[1], v)
        if second is None or second[0].value != 1 or v in first[0].vars:
            continue
        if v.extent is first[0]:
            rest = q - second[1]
            whole = quotient(rest, first[0])
            return {u: whole, v: rest - first[0] * whole}
    return None


def _solve_any(p: Poly, q: Poly, free: Sequence[Var]) -> dict[Var, Poly] | None:
    """Solve u + v == q with u as large as possible."""
    u, v = sorted(free, key=lambda v: v.number)
    rest = p - polynomial.atom_poly(u) - polynomial.atom_poly(v)
    if u in rest.vars or v in rest.vars:
        return None
    first = polynomial.minimum(q - rest, u.extent - 1)
    return {u: first, v: q - rest - first}
