"""Unification: substitutions for bound variables that make two products, or two values, equal.

x[u, v + 1] against x[i, k - p]      u = i, v = k - p - 1 x[K * u + v] against x[k], v < K     u = k
// K, v = k % K
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from superopt.verifier import normal as N
from superopt.verifier import poly as P
from superopt.verifier import substitute as S
from superopt.verifier.guard import Guard, tick
from superopt.verifier.normal import NF, Factor, Piece, Power, Term
from superopt.verifier.poly import Poly, Var
from superopt.verifier.simplify import quotient

Equations = tuple[tuple[Poly, Poly], ...]
MOST_WAYS = 24  # pairings tried


def powers(ps: Sequence[Power], qs: Sequence[Power]) -> Iterator[Equations]:
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
            for first in factor(f, g):
                for others in powers(rest, (*qs[:k], *qs[k + 1 :])):
                    yield (*first, *others)


def factor(f: Factor, g: Factor) -> Iterator[Equations]:
    """Yield the equations under which the factor f is g."""
    tick()
    if f is g:
        yield ()
        if not isinstance(f, N.Read):
            return
    match f, g:
        case N.Read(), N.Read():
            if f is not g and f.name == g.name and len(f.index) == len(g.index):
                yield tuple(zip(f.index, g.index, strict=True))
        case N.Num(), N.Num():
            if f is not g:
                yield ((P.of(f.atom), P.of(g.atom)),)
        case N.Fn(), N.Fn():
            if f.name == g.name and len(f.args) == len(g.args):
                yield from forms(f.args, g.args)
        case N.Exp(), N.Exp():
            yield from form(f.of, g.of)
        case N.Total(), N.Total():
            yield from form(f.of, g.of)
        case N.Truth(), N.Truth():
            if f.fn == g.fn:
                yield from form(f.of, g.of)
        case N.Top(), N.Top():
            if len(f.pieces) == len(g.pieces):
                yield from pieces(f.pieces, g.pieces)
        case N.Prod(), N.Prod():
            yield from pieces((f.piece,), (g.piece,))
        case _:
            return


def forms(ps: Sequence[NF], qs: Sequence[NF]) -> Iterator[Equations]:
    if not ps:
        yield ()
        return
    for first in form(ps[0], qs[0]):
        for rest in forms(ps[1:], qs[1:]):
            yield (*first, *rest)


def form(a: NF, b: NF) -> Iterator[Equations]:
    """Yield the equations under which the form a is b, term by term."""
    if a is b:
        yield ()
        return
    if len(a.terms) == len(b.terms):
        yield from _terms(a.terms, b.terms)


def _terms(ps: Sequence[Term], qs: Sequence[Term]) -> Iterator[Equations]:
    if not ps:
        yield ()
        return
    p = ps[0]
    for k, q in enumerate(qs):
        if p.coefficient != q.coefficient or len(p.bound) != len(q.bound):
            continue
        if len(p.guards) != len(q.guards):
            continue
        left, right, extents = _aligned(p.bound, q.bound)
        u = Term(p.coefficient, (), _moved(p.guards, left), S.powers_at(p.powers, left))
        w = Term(q.coefficient, (), _moved(q.guards, right), S.powers_at(q.powers, right))
        for inner in powers(u.powers, w.powers):
            more = _guards(u.guards, w.guards)
            if more is None:
                continue
            for rest in _terms(ps[1:], (*qs[:k], *qs[k + 1 :])):
                yield (*extents, *more, *inner, *rest)


def _moved(guards: frozenset[Guard], env: S.Env) -> frozenset[Guard]:
    return frozenset(S.guard_at(g, env) for g in guards)


def _aligned(
    ps: tuple[Var, ...], qs: tuple[Var, ...]
) -> tuple[dict[Var, Poly], dict[Var, Poly], Equations]:
    """Replace the bound variables of both sides by the same fresh ones; extents become
    equations."""
    left: dict[Var, Poly] = {}
    right: dict[Var, Poly] = {}
    extents: list[tuple[Poly, Poly]] = []
    for v, w in zip(ps, qs, strict=True):
        new = P.of(P.fresh(w.extent))
        left[v] = right[w] = new
        if v.extent is not w.extent:
            extents.append((v.extent, w.extent))
    return left, right, tuple(extents)


def _guards(ps: frozenset[Guard], qs: frozenset[Guard]) -> Equations | None:
    out: list[tuple[Poly, Poly]] = []
    for p, q in zip(sorted(ps), sorted(qs), strict=True):
        if p is q or p == q:
            continue
        if p.kind != q.kind:
            return None
        out.append((p.p, q.p))
    return tuple(out)


def pieces(ps: Sequence[Piece], qs: Sequence[Piece]) -> Iterator[Equations]:
    if not ps:
        yield ()
        return
    p = ps[0]
    for k, q in enumerate(qs):
        if len(p.bound) != len(q.bound) or len(p.guards) != len(q.guards):
            continue
        left, right, extents = _aligned(p.bound, q.bound)
        more = _guards(_moved(p.guards, left), _moved(q.guards, right))
        if more is None:
            continue
        for inner in form(S.form_at(p.value, left), S.form_at(q.value, right)):
            for rest in pieces(ps[1:], (*qs[:k], *qs[k + 1 :])):
                yield (*extents, *more, *inner, *rest)


# --- solving --------------------------------------------------------------------------------------


def solved(
    equations: Equations, unknown: Sequence[Var], some: bool = False
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
            here = S.poly_at(p, env)
            free = [v for v in here.vars if v in left]
            if not free:
                continue
            found = _one(here, q, free) or (_two(here, q, free) if len(free) == 2 else None)
            if not found and some and len(free) == 2:
                found = _any(here, q, free)
            if found:
                env = {v: S.poly_at(e, found) for v, e in env.items()} | found
                left -= found.keys()
                progress = True
    return None if left else env


def _one(p: Poly, q: Poly, free: Sequence[Var]) -> dict[Var, Poly] | None:
    if len(free) != 1:
        return None
    split = P.linear_in(p, free[0])
    if split is None:
        return None
    a, b = split
    if a.value in (1, -1):
        return {free[0]: (q - b) if a.value == 1 else (b - q)}
    whole, rest = P.divided(q - b, a)
    return {free[0]: whole} if not rest.terms and a.terms else None


def _two(p: Poly, q: Poly, free: Sequence[Var]) -> dict[Var, Poly] | None:
    """Solve K * u + v == q with 0 <= v < K: quotient and remainder."""
    for u, v in ((free[0], free[1]), (free[1], free[0])):
        first = P.linear_in(p, u)
        if first is None:
            continue
        second = P.linear_in(first[1], v)
        if second is None or second[0].value != 1 or v in first[0].vars:
            continue
        if v.extent is first[0]:
            rest = q - second[1]
            whole = quotient(rest, first[0])
            return {u: whole, v: rest - first[0] * whole}
    return None


def _any(p: Poly, q: Poly, free: Sequence[Var]) -> dict[Var, Poly] | None:
    """Solve u + v == q with u as large as possible."""
    u, v = sorted(free, key=lambda v: v.number)
    rest = p - P.of(u) - P.of(v)
    if u in rest.vars or v in rest.vars:
        return None
    first = P.least(q - rest, u.extent - 1)
    return {u: first, v: q - rest - first}
