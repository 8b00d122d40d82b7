"""Substitution in normal forms; opening terms with fresh variables, and closing them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

from superopt.verifier import poly as P
from superopt.verifier.guard import Guard
from superopt.verifier.normal import (
    NF,
    Exp,
    Factor,
    Fn,
    Num,
    Piece,
    Power,
    Prod,
    Read,
    Term,
    Top,
    Total,
    Truth,
    exp,
    fn,
    form,
    num,
    number,
    prod,
    read,
    top,
    total,
    truth,
)
from superopt.verifier.poly import Atom, Chosen, Least, Poly, Quot, Var

Env = Mapping[Var, Poly]
Quotient = Callable[[Poly, Poly], Poly]


def opened(t: Term) -> Term:
    """Return `t` with fresh bound variables; an extent may depend on variables to its left."""
    if not t.bound:
        return t
    env, bound = fresh_for(t.bound)
    return Term(
        t.coefficient,
        bound,
        frozenset(guard_at(g, env) for g in t.guards),
        powers_at(t.powers, env),
    )


def fresh_for(bound: tuple[Var, ...]) -> tuple[dict[Var, Poly], tuple[Var, ...]]:
    env: dict[Var, Poly] = {}
    out: list[Var] = []
    for v in bound:
        w = P.fresh(poly_at(v.extent, env))
        env[v] = P.of(w)
        out.append(w)
    return env, tuple(out)


def poly_at(p: Poly, env: Env) -> Poly:
    """Return `p` with variables replaced; `simplify` rewrites its quotients."""
    if not env or p.vars.isdisjoint(env):
        return p
    out = P.const(0)
    for m, c in p.terms:
        term = P.const(c)
        for a in m:
            term = term * atom_at(a, env)
        out = out + term
    return out


def atom_at(a: Atom, env: Env) -> Poly:
    match a:
        case Var():
            return env.get(a) or P.of(a)
        case Quot():
            return QUOTIENT[0](poly_at(a.p, env), poly_at(a.q, env))
        case Least():
            return P.least(poly_at(a.p, env), poly_at(a.q, env))
        case Chosen():
            element = a.element
            assert isinstance(element, NF)
            return P.chosen(form_at(element, env), poly_at(a.bound, env))
        case _:
            return P.of(a)


def _plain_quotient(p: Poly, q: Poly) -> Poly:
    return P.of(P.quot_atom(p, q))


QUOTIENT: list[Quotient] = [_plain_quotient]  # `simplify` installs its own here


def guard_at(g: Guard, env: Env) -> Guard:
    p = poly_at(g.p, env)
    return g if p is g.p else (Guard(g.kind, -p if g.kind != "ge" and _turned(p) else p))


def _turned(p: Poly) -> bool:
    return bool(p.terms) and p.terms[-1][1] < 0


def powers_at(powers: tuple[Power, ...], env: Env) -> tuple[Power, ...]:
    if not env:
        return powers
    changed: dict[Factor, Fraction] = {}
    same = True
    for f, e in powers:
        g = factor_at(f, env)
        same = same and g is f
        changed[g] = changed.get(g, Fraction(0)) + e
    if same:
        return powers
    rest = [(f, Fraction(1) if isinstance(f, Truth) else e) for f, e in changed.items() if e]
    rest.sort(key=lambda p: p[0].number)
    return tuple(rest)


def factor_at(f: Factor, env: Env) -> Factor:
    """Return `f` with free variables replaced."""
    if f.free.isdisjoint(env):
        return f
    match f:
        case Read():
            return read(f.name, tuple(poly_at(p, env) for p in f.index))
        case Fn():
            return fn(f.name, tuple(form_at(a, env) for a in f.args))
        case Exp():
            return exp(form_at(f.of, env))
        case Total():
            return total(form_at(f.of, env))
        case Truth():
            return truth(f.fn, form_at(f.of, env))
        case Top():
            return top(frozenset(piece_at(p, env) for p in f.pieces))
        case Prod():
            return prod(piece_at(f.piece, env))
        case Num():
            p = poly_at(P.of(f.atom), env)
            return fn("number", (number(p),)) if len(p.terms) != 1 else _num_of(p)
        case _:
            raise TypeError(str(f))


def _num_of(p: Poly) -> Factor:
    ((m, c),) = p.terms
    return num(m[0]) if c == 1 and len(m) == 1 else fn("number", (number(p),))


def form_at(a: NF, env: Env) -> NF:
    """Return `a` with free variables replaced; bound variables are renumbered."""
    if a.vars.isdisjoint(env):
        return a
    return form(close(term_at(t, env)) for t in a.terms)


def term_at(t: Term, env: Env) -> Term:
    """Return `t` with free variables replaced, as an open term."""
    t = opened(t)
    bound = tuple(_var_at(v, env) for v in t.bound)
    moved = {v: P.of(w) for v, w in zip(t.bound, bound, strict=True) if v is not w}
    full = {**env, **moved}
    return Term(
        t.coefficient,
        bound,
        frozenset(guard_at(g, full) for g in t.guards),
        powers_at(t.powers, full),
    )


def _var_at(v: Var, env: Env) -> Var:
    extent = poly_at(v.extent, env)
    return v if extent is v.extent else P.fresh(extent)


def piece_at(p: Piece, env: Env) -> Piece:
    inner, bound = fresh_for(p.bound)
    both = {**env, **inner}
    value = form_at(form_at(p.value, inner), env) if inner else form_at(p.value, env)
    fixed: list[Var] = []
    again: dict[Var, Poly] = {}
    for v in bound:
        w = _var_at(v, env)
        fixed.append(w)
        if w is not v:
            again[v] = P.of(w)
    guards = frozenset(guard_at(guard_at(g, both), again) for g in p.guards)
    return close_piece(Piece(tuple(fixed), guards, form_at(value, again)))


# --- closing --------------------------------------------------------------------------------------


def close(t: Term) -> Term:
    """Return `t` with its bound variables numbered canonically."""
    if not t.bound:
        return t
    base = max((f.level for f, _ in t.powers), default=0)
    env, bound = _numbered(t.bound, base, _Places(t.guards, t.powers, None))
    return Term(
        t.coefficient,
        bound,
        frozenset(guard_at(g, env) for g in t.guards),
        powers_at(t.powers, env),
    )


def close_piece(p: Piece) -> Piece:
    if not p.bound:
        return p
    env, bound = _numbered(p.bound, p.value.level, _Places(p.guards, (), p.value))
    return Piece(bound, frozenset(guard_at(g, env) for g in p.guards), form_at(p.value, env))


@dataclass(frozen=True, slots=True)
class _Places:
    guards: frozenset[Guard]
    powers: tuple[Power, ...]
    value: NF | None


def _numbered(
    bound: tuple[Var, ...], base: int, places: _Places
) -> tuple[dict[Var, Poly], tuple[Var, ...]]:
    marks = {v: _signature(v, bound, places) for v in bound}
    order = sorted(bound, key=lambda v: marks[v])
    env: dict[Var, Poly] = {}
    out: list[Var] = []
    for n, v in enumerate(order):
        w = P.closed(base + 1 + n, poly_at(v.extent, env))
        env[v] = P.of(w)
        out.append(w)
    return env, tuple(out)


def _signature(v: Var, bound: tuple[Var, ...], places: _Places) -> list[tuple[object, ...]]:
    """Return where a bound variable occurs, independent of the names of the others."""
    own = frozenset(bound)
    found: list[tuple[object, ...]] = [(0, "extent", v.extent.number)]
    for f, e in places.powers:
        if v in f.free:
            found += [(1, float(e), *w) for w in _in_factor(f, v, own)]
    if places.value is not None:
        for t in places.value.terms:
            for f, e in t.powers:
                if v in f.free:
                    found += [(2, float(e), *w) for w in _in_factor(f, v, own)]
    for g in places.guards:
        if v in g.p.vars:
            found.append((3, g.kind, repr(_mono_marks(g.p, v, own))))
    found.sort(key=repr)
    return [(repr(w),) for w in found]


def _mono_marks(p: Poly, v: Var, own: frozenset[Var]) -> list[tuple[list[str], int]]:
    return sorted(
        (
            ["this" if a is v else "other" if a in own else _atom_mark(a, v, own) for a in m],
            c,
        )
        for m, c in p.terms
    )


def _atom_mark(a: Atom, v: Var, own: frozenset[Var]) -> str:
    match a:
        case Quot() | Least():
            if not own.isdisjoint(a.p.vars | a.q.vars):
                inner = (_mono_marks(a.p, v, own), _mono_marks(a.q, v, own))
                return f"{type(a).__name__}{inner}"
        case _:
            pass
    return f"n{a.number:09d}"


def _in_factor(f: Factor, v: Var, own: frozenset[Var]) -> Iterator[tuple[object, ...]]:
    match f:
        case Read():
            for k, p in enumerate(f.index):
                if v in p.vars:
                    yield ("read", f.name, k, repr(_mono_marks(p, v, own)))
        case Fn():
            for k, a in enumerate(f.args):
                if v in a.vars:
                    yield from (("fn", f.name, k, *w) for w in _in_form(a, v, own))
        case Exp() | Total() | Truth():
            yield from ((type(f).__name__, *w) for w in _in_form(f.of, v, own))
        case Top():
            for piece in f.pieces:
                yield from (("top", *w) for w in _in_form(piece.value, v, own))
        case _:
            yield (type(f).__name__,)


def _in_form(a: NF, v: Var, own: frozenset[Var]) -> Iterator[tuple[object, ...]]:
    for t in a.terms:
        for f, e in t.powers:
            if v in f.free:
                yield from ((str(e), *w) for w in _in_factor(f, v, own))


def polynomials(a: NF) -> Iterator[Poly]:
    """Yield the index polynomials of a form: of reads, guards and extents."""
    for t in a.terms:
        for v in t.bound:
            yield v.extent
        for g in t.guards:
            yield g.p
        for f, _ in t.powers:
            yield from _polys_of(f)


def _polys_of(f: Factor) -> Iterator[Poly]:
    match f:
        case Read():
            yield from f.index
        case Num():
            yield P.of(f.atom)
        case Fn():
            for a in f.args:
                yield from polynomials(a)
        case Exp() | Total() | Truth():
            yield from polynomials(f.of)
        case Top() | Prod():
            for p in f.pieces if isinstance(f, Top) else (f.piece,):
                for v in p.bound:
                    yield v.extent
                for g in p.guards:
                    yield g.p
                yield from polynomials(p.value)
        case _:
            pass
