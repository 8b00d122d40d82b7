"""Substitution in normal forms; opening terms with fresh variables, and closing them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

from superopt.verifier.elements.normal import (
    NF,
    Exp,
    Factor,
    Fn,
    Max,
    Num,
    Piece,
    Power,
    Prod,
    Read,
    Sum,
    Term,
    Truth,
    exp,
    fn,
    from_poly,
    from_terms,
    maximum,
    num,
    prod,
    read,
    sum_factor,
    truth,
)
from superopt.verifier.elements.quotients import quotient
from superopt.verifier.poly import polynomial
from superopt.verifier.poly.guards import Guard
from superopt.verifier.poly.polynomial import Atom, ElementIndex, Min, Poly, Quotient, Var

Env = Mapping[Var, Poly]


def open_term(t: Term) -> Term:
    """Return `t` with fresh bound variables; an extent may depend on variables to its left."""
    if not t.bound:
        return t
    env, bound = fresh_vars(t.bound)
    return Term(
        t.coefficient,
        bound,
        frozenset(guard_at(g, env) for g in t.guards),
        powers_at(t.powers, env),
    )


def fresh_vars(bound: tuple[Var, ...]) -> tuple[dict[Var, Poly], tuple[Var, ...]]:
    env: dict[Var, Poly] = {}
    out: list[Var] = []
    for v in bound:
        w = polynomial.fresh_var(poly_at(v.extent, env))
        env[v] = polynomial.atom_poly(w)
        out.append(w)
    return env, tuple(out)


def poly_at(p: Poly, env: Env) -> Poly:
    """Return `p` with variables replaced and its quotients simplified."""
    if not env or p.vars.isdisjoint(env):
        return p
    out = polynomial.const(p.context, 0)
    for m, c in p.terms:
        term = polynomial.const(p.context, c)
        for a in m:
            term = term * atom_at(a, env)
        out = out + term
    return out


def atom_at(a: Atom, env: Env) -> Poly:
    match a:
        case Var():
            return env.get(a) or polynomial.atom_poly(a)
        case Quotient():
            return quotient(poly_at(a.p, env), poly_at(a.q, env))
        case Min():
            return polynomial.minimum(poly_at(a.p, env), poly_at(a.q, env))
        case ElementIndex():
            element = a.element
            assert isinstance(element, NF)
            return polynomial.element_index(form_at(element, env), poly_at(a.bound, env))
        case _:
            return polynomial.atom_poly(a)


def guard_at(g: Guard, env: Env) -> Guard:
    p = poly_at(g.p, env)
    return g if p is g.p else (Guard(g.kind, -p if g.kind != "ge" and _is_lead_negative(p) else p))


def _is_lead_negative(p: Poly) -> bool:
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
    if f.free_vars.isdisjoint(env):
        return f
    match f:
        case Read():
            return read(f.context, f.name, tuple(poly_at(p, env) for p in f.index))
        case Fn():
            return fn(f.name, tuple(form_at(a, env) for a in f.args))
        case Exp():
            return exp(form_at(f.argument, env))
        case Sum():
            return sum_factor(form_at(f.argument, env))
        case Truth():
            return truth(f.fn, form_at(f.argument, env))
        case Max():
            return maximum(frozenset(piece_at(p, env) for p in f.pieces))
        case Prod():
            return prod(piece_at(f.piece, env))
        case Num():
            p = poly_at(polynomial.atom_poly(f.atom), env)
            return fn("number", (from_poly(p),)) if len(p.terms) != 1 else _num_of(p)
        case _:
            raise TypeError(str(f))


def _num_of(p: Poly) -> Factor:
    ((m, c),) = p.terms
    return num(m[0]) if c == 1 and len(m) == 1 else fn("number", (from_poly(p),))


def form_at(a: NF, env: Env) -> NF:
    """Return `a` with free variables replaced; bound variables are renumbered."""
    if a.vars.isdisjoint(env):
        return a
    return from_terms(a.context, (close(term_at(t, env)) for t in a.terms))


def term_at(t: Term, env: Env) -> Term:
    """Return `t` with free variables replaced, as an open term."""
    t = open_term(t)
    bound = tuple(_var_at(v, env) for v in t.bound)
    moved = {v: polynomial.atom_poly(w) for v, w in zip(t.bound, bound, strict=True) if v is not w}
    full = {**env, **moved}
    return Term(
        t.coefficient,
        bound,
        frozenset(guard_at(g, full) for g in t.guards),
        powers_at(t.powers, full),
    )


def _var_at(v: Var, env: Env) -> Var:
    extent = poly_at(v.extent, env)
    return v if extent is v.extent else polynomial.fresh_var(extent)


def piece_at(p: Piece, env: Env) -> Piece:
    inner, bound = fresh_vars(p.bound)
    both = {**env, **inner}
    value = form_at(form_at(p.value, inner), env) if inner else form_at(p.value, env)
    fixed: list[Var] = []
    again: dict[Var, Poly] = {}
    for v in bound:
        w = _var_at(v, env)
        fixed.append(w)
        if w is not v:
            again[v] = polynomial.atom_poly(w)
    guards = frozenset(guard_at(guard_at(g, both), again) for g in p.guards)
    return close_piece(Piece(tuple(fixed), guards, form_at(value, again)))


# --- closing --------------------------------------------------------------------------------------


def close(t: Term) -> Term:
    """Return `t` with its bound variables numbered canonically."""
    if not t.bound:
        return t
    base = max((f.level for f, _ in t.powers), default=0)
    env, bound = _number_vars(t.bound, base, _Occurrences(t.guards, t.powers, None))
    return Term(
        t.coefficient,
        bound,
        frozenset(guard_at(g, env) for g in t.guards),
        powers_at(t.powers, env),
    )


def close_piece(p: Piece) -> Piece:
    if not p.bound:
        return p
    env, bound = _number_vars(p.bound, p.value.level, _Occurrences(p.guards, (), p.value))
    return Piece(bound, frozenset(guard_at(g, env) for g in p.guards), form_at(p.value, env))


@dataclass(frozen=True, slots=True)
class _Occurrences:
    guards: frozenset[Guard]
    powers: tuple[Power, ...]
    value: NF | None


def _number_vars(
    bound: tuple[Var, ...], base: int, places: _Occurrences
) -> tuple[dict[Var, Poly], tuple[Var, ...]]:
    marks = {v: _signature(v, bound, places) for v in bound}
    order = sorted(bound, key=lambda v: marks[v])
    env: dict[Var, Poly] = {}
    out: list[Var] = []
    for n, v in enumerate(order):
        w = polynomial.bound_var(base + 1 + n, poly_at(v.extent, env))
        env[v] = polynomial.atom_poly(w)
        out.append(w)
    return env, tuple(out)


def _signature(v: Var, bound: tuple[Var, ...], places: _Occurrences) -> list[tuple[object, ...]]:
    """Return where a bound variable occurs, independent of the names of the others."""
    own = frozenset(bound)
    found: list[tuple[object, ...]] = [(0, "extent", v.extent.number)]
    for f, e in places.powers:
        if v in f.free_vars:
            found += [(1, float(e), *w) for w in _factor_occurrences(f, v, own)]
    if places.value is not None:
        for t in places.value.terms:
            for f, e in t.powers:
                if v in f.free_vars:
                    found += [(2, float(e), *w) for w in _factor_occurrences(f, v, own)]
    for g in places.guards:
        if v in g.p.vars:
            found.append((3, g.kind, repr(_monomial_marks(g.p, v, own))))
    found.sort(key=repr)
    return [(repr(w),) for w in found]


def _monomial_marks(p: Poly, v: Var, bound_vars: frozenset[Var]) -> list[tuple[list[str], int]]:
    return sorted(
        (
            [
                "this" if a is v else "other" if a in bound_vars else _atom_mark(a, v, bound_vars)
                for a in m
            ],
            c,
        )
        for m, c in p.terms
    )


def _atom_mark(a: Atom, v: Var, bound_vars: frozenset[Var]) -> str:
    match a:
        case Quotient() | Min():
            if not bound_vars.isdisjoint(a.p.vars | a.q.vars):
                inner = (_monomial_marks(a.p, v, bound_vars), _monomial_marks(a.q, v, bound_vars))
                return f"{type(a).__name__}{inner}"
        case _:
            pass
    return f"n{a.number:09d}"


def _factor_occurrences(
    f: Factor, v: Var, bound_vars: frozenset[Var]
) -> Iterator[tuple[object, ...]]:
    match f:
        case Read():
            for k, p in enumerate(f.index):
                if v in p.vars:
                    yield ("read", f.name, k, repr(_monomial_marks(p, v, bound_vars)))
        case Fn():
            for k, a in enumerate(f.args):
                if v in a.vars:
                    yield from (("fn", f.name, k, *w) for w in _form_occurrences(a, v, bound_vars))
        case Exp() | Sum() | Truth():
            yield from (
                (type(f).__name__, *w) for w in _form_occurrences(f.argument, v, bound_vars)
            )
        case Max():
            for piece in f.pieces:
                yield from (("top", *w) for w in _form_occurrences(piece.value, v, bound_vars))
        case _:
            yield (type(f).__name__,)


def _form_occurrences(a: NF, v: Var, bound_vars: frozenset[Var]) -> Iterator[tuple[object, ...]]:
    for t in a.terms:
        for f, e in t.powers:
            if v in f.free_vars:
                yield from ((str(e), *w) for w in _factor_occurrences(f, v, bound_vars))


def polynomials(a: NF) -> Iterator[Poly]:
    """Yield the index polynomials of a form: of reads, guards and extents."""
    for t in a.terms:
        for v in t.bound:
            yield v.extent
        for g in t.guards:
            yield g.p
        for f, _ in t.powers:
            yield from _factor_polynomials(f)


def _factor_polynomials(f: Factor) -> Iterator[Poly]:
    match f:
        case Read():
            yield from f.index
        case Num():
            yield polynomial.atom_poly(f.atom)
        case Fn():
            for a in f.args:
                yield from polynomials(a)
        case Exp() | Sum() | Truth():
            yield from polynomials(f.argument)
        case Max() | Prod():
            for p in f.pieces if isinstance(f, Max) else (f.piece,):
                for v in p.bound:
                    yield v.extent
                for g in p.guards:
                    yield g.p
                yield from polynomials(p.value)
        case _:
            pass
