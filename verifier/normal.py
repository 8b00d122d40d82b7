"""Normal forms of elements: sums over bound indices, under guards, of coefficients times atoms.

    sum over k < n where k >= p of  2 * x[i, k] * w[k, j] * exp(y[i])^-1

A form is a tuple of terms in one order, no two alike; bound variables are numbered from the inside
out, so forms that differ in their names only are identical. Sums and products are made here; what
depends on facts (which guards hold) is in `simplify.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

from superopt.verifier import poly as P
from superopt.verifier.facts import Guard
from superopt.verifier.poly import Atom, Chosen, Least, Poly, Quot, Var


class Factor:
    """An atom of a product. `number` orders them; `level` is above all variables bound inside."""

    __slots__ = ("free", "level", "number")
    number: int
    level: int
    free: frozenset[Var]

    def __lt__(self, other: Factor) -> bool:
        return self.number < other.number


class Read(Factor):
    """An element of an input."""

    __slots__ = ("index", "name")

    def __init__(self, name: str, index: tuple[Poly, ...]) -> None:
        self.name, self.index = name, index

    def __repr__(self) -> str:
        return f"{self.name}[{', '.join(map(str, self.index))}]"


class Num(Factor):
    """A size or index as a number."""

    __slots__ = ("atom",)

    def __init__(self, atom: Atom) -> None:
        self.atom = atom

    def __repr__(self) -> str:
        return str(self.atom)


class Fn(Factor):
    """A scalar function of which nothing is known but its name."""

    __slots__ = ("args", "name")

    def __init__(self, name: str, args: tuple[NF, ...]) -> None:
        self.name, self.args = name, args

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.args))})"


class Exp(Factor):
    """exp of one term with coefficient 1: powers are multiples of the exponent."""

    __slots__ = ("of",)

    def __init__(self, of: NF) -> None:
        self.of = of

    def __repr__(self) -> str:
        return f"exp({self.of})"


class Total(Factor):
    """A sum as one factor, in negative powers: positive ones are multiplied out."""

    __slots__ = ("of",)

    def __init__(self, of: NF) -> None:
        self.of = of

    def __repr__(self) -> str:
        return f"({self.of})"


class Top(Factor):
    """The greatest of pieces, each a value over bound variables under guards."""

    __slots__ = ("pieces",)

    def __init__(self, pieces: tuple[Piece, ...]) -> None:
        self.pieces = pieces

    def __repr__(self) -> str:
        return f"max({' | '.join(map(str, self.pieces))})"


class Truth(Factor):
    """1 where a comparison of an element with 0 holds, else 0: lt, eq; or a bool element, is."""

    __slots__ = ("fn", "of")

    def __init__(self, fn: str, of: NF) -> None:
        self.fn, self.of = fn, of

    def __repr__(self) -> str:
        return f"[{self.fn} {self.of}]"


class Prod(Factor):
    """A product over bound variables."""

    __slots__ = ("piece",)

    def __init__(self, piece: Piece) -> None:
        self.piece = piece

    def __repr__(self) -> str:
        return f"prod({self.piece})"


@dataclass(frozen=True, slots=True)
class Piece:
    """A value for each of the bound variables for which the guards hold."""

    bound: tuple[Var, ...]
    guards: frozenset[Guard]
    value: NF

    def __str__(self) -> str:
        return f"{self.value} for {self.bound} where {[str(g) for g in self.guards]}"


Power = tuple[Factor, Fraction]


@dataclass(frozen=True, slots=True)
class Term:
    """A coefficient times the sum over `bound` where `guards` hold of the product of powers."""

    coefficient: Fraction
    bound: tuple[Var, ...]
    guards: frozenset[Guard]
    powers: tuple[Power, ...]

    @property
    def key(self) -> tuple[tuple[Var, ...], frozenset[Guard], tuple[Power, ...]]:
        return self.bound, self.guards, self.powers

    def __str__(self) -> str:
        over = f"sum_{self.bound} " if self.bound else ""
        where = f"[{', '.join(map(str, sorted(self.guards)))}] " if self.guards else ""
        powers = [f"{f}" if e == 1 else f"{f}^{e}" for f, e in self.powers]
        return f"{self.coefficient} {over}{where}{' * '.join(powers)}".strip()


class NF:
    """A normal form; equal ones are identical."""

    __slots__ = ("_vars", "level", "number", "terms")

    def __init__(self, terms: tuple[Term, ...], number: int) -> None:
        self.terms, self.number = terms, number
        self.level = max((level_of(t) for t in terms), default=0)
        self._vars: frozenset[Var] | None = None

    def __repr__(self) -> str:
        return " + ".join(map(str, self.terms)) or "0"

    @property
    def vars(self) -> frozenset[Var]:
        """The free variables."""
        if self._vars is None:
            self._vars = frozenset().union(*(free_of(t) for t in self.terms))
        return self._vars

    @property
    def constant(self) -> Fraction | None:
        """The number that it is, if it is one."""
        if not self.terms:
            return Fraction(0)
        t = self.terms[0]
        if len(self.terms) == 1 and not (t.bound or t.guards or t.powers):
            return t.coefficient
        return None

    @property
    def single(self) -> Term | None:
        """Its only term, if that has no guards and no bound variables."""
        if len(self.terms) == 1 and not self.terms[0].bound and not self.terms[0].guards:
            return self.terms[0]
        return None


def level_of(t: Term) -> int:
    """Above the bound variables of a term and of all inside it."""
    inner = max((f.level for f, _ in t.powers), default=0)
    return max(inner, max((v.level for v in t.bound), default=0))


def free_of(t: Term) -> frozenset[Var]:
    found: set[Var] = set()
    for f, _ in t.powers:
        found |= f.free
    for g in t.guards:
        found |= g.p.vars
    for v in t.bound:
        found |= v.extent.vars
    return frozenset(found.difference(t.bound))


# --- interning ------------------------------------------------------------------------------------

_FORMS: dict[frozenset[Term], NF] = {}
_FACTORS: dict[object, Factor] = {}
_COUNT = [0]


def forget() -> None:
    """Empty the tables."""
    _FORMS.clear()
    _FACTORS.clear()


def _number() -> int:
    _COUNT[0] += 1
    return _COUNT[0]


def form(terms: Iterable[Term]) -> NF:
    """The sum of closed terms."""
    merged: dict[object, Term] = {}
    for t in terms:
        old = merged.get(t.key)
        if old is None:
            merged[t.key] = t
        else:
            merged[t.key] = Term(old.coefficient + t.coefficient, t.bound, t.guards, t.powers)
    rest = [t for t in merged.values() if t.coefficient]
    key = frozenset(rest)
    found = _FORMS.get(key)
    if found is None:
        rest.sort(key=_order)
        found = _FORMS[key] = NF(tuple(rest), _number())
    return found


def _order(t: Term) -> tuple[object, ...]:
    return (
        len(t.powers),
        len(t.bound),
        [(f.number, e) for f, e in t.powers],
        [v.number for v in t.bound],
        sorted((g.kind, g.p.number) for g in t.guards),
    )


def _factor(key: object, f: Factor, free: frozenset[Var], level: int) -> Factor:
    found = _FACTORS.get(key)
    if found is None:
        f.number, f.free, f.level = _number(), free, level
        found = _FACTORS[key] = f
    return found


NONE: frozenset[Var] = frozenset()


def read(name: str, index: tuple[Poly, ...]) -> Factor:
    free = NONE.union(*(p.vars for p in index))
    return _factor(("read", name, index), Read(name, index), free, _level(index))


def _level(polys: Iterable[Poly]) -> int:
    """Above what is bound in elements that are used as indices."""
    out = 0
    for p in polys:
        for a in p.atoms():
            match a:
                case Chosen():
                    out = max(out, a.element.level)  # type: ignore[attr-defined]
                case Quot() | Least():
                    out = max(out, _level((a.p, a.q)))
                case _:
                    pass
    return out


def num(a: Atom) -> Factor:
    p = P.of(a)
    return _factor(("num", a), Num(a), p.vars, _level((p,)))


def fn(name: str, args: tuple[NF, ...]) -> Factor:
    free = NONE.union(*(a.vars for a in args))
    return _factor(("fn", name, args), Fn(name, args), free, max(a.level for a in args))


def exp(of: NF) -> Factor:
    return _factor(("exp", of), Exp(of), of.vars, of.level)


def total(of: NF) -> Factor:
    return _factor(("total", of), Total(of), of.vars, of.level)


def truth(name: str, of: NF) -> Factor:
    return _factor(("truth", name, of), Truth(name, of), of.vars, of.level)


def free_of_piece(p: Piece) -> frozenset[Var]:
    found = set(p.value.vars)
    for g in p.guards:
        found |= g.p.vars
    for v in p.bound:
        found |= v.extent.vars
    return frozenset(found.difference(p.bound))


def level_of_piece(p: Piece) -> int:
    return max(p.value.level, max((v.level for v in p.bound), default=0))


def top(pieces: frozenset[Piece]) -> Factor:
    """The greatest of closed pieces; a set, since max is idempotent."""
    free = NONE.union(*(free_of_piece(p) for p in pieces))
    level = max((level_of_piece(p) for p in pieces), default=0)
    ordered = tuple(sorted(pieces, key=lambda p: (p.value.number, [v.number for v in p.bound])))
    return _factor(("top", pieces), Top(ordered), free, level)


def prod(piece: Piece) -> Factor:
    return _factor(("prod", piece), Prod(piece), free_of_piece(piece), level_of_piece(piece))


# --- building -------------------------------------------------------------------------------------

ZERO = "zero"


def zero() -> NF:
    return form(())


def constant(c: Fraction | int) -> NF:
    return form((Term(Fraction(c), (), frozenset(), ()),)) if c else form(())


def one_of(f: Factor, power: Fraction | int = 1) -> NF:
    return form((Term(Fraction(1), (), frozenset(), ((f, Fraction(power)),)),))


def scaled(a: NF, c: Fraction | int) -> NF:
    if c == 1:
        return a
    if not c:
        return form(())
    return form(Term(t.coefficient * c, t.bound, t.guards, t.powers) for t in a.terms)


def plus(*forms: NF) -> NF:
    return form(t for a in forms for t in a.terms)


def minus(a: NF, b: NF) -> NF:
    return plus(a, scaled(b, -1))


def number(p: Poly) -> NF:
    """An index or size as a number."""
    out: list[Term] = []
    for m, c in p.terms:
        powers: dict[Factor, Fraction] = {}
        for a in m:
            f = num(a)
            powers[f] = powers.get(f, Fraction(0)) + 1
        out.append(Term(Fraction(c), (), frozenset(), tuple(sorted(powers.items()))))
    return form(out)


def merged(a: Iterable[Power], b: Iterable[Power]) -> tuple[Power, ...] | None:
    """The product of two products. None: a truth met its opposite."""
    powers = dict(a)
    for f, e in b:
        powers[f] = powers.get(f, Fraction(0)) + e
    rest = [(f, Fraction(1) if isinstance(f, Truth) else e) for f, e in powers.items() if e]
    rest.sort(key=lambda p: p[0].number)
    return tuple(rest)


# --- substitution ---------------------------------------------------------------------------------

Env = Mapping[Var, Poly]
Quotient = Callable[[Poly, Poly], Poly]


def opened(t: Term) -> Term:
    """`t` with fresh bound variables; its extents may depend on each other from left to right."""
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
    """`p` with variables replaced. Quotients are kept as they are; `simplify` tidies them."""
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


QUOTIENT: list[Quotient] = [_plain_quotient]  # `simplify` puts a better one here


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
    """`f` with free variables replaced."""
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
    """`a` with free variables replaced; bound variables are renumbered."""
    if a.vars.isdisjoint(env):
        return a
    return form(close(term_at(t, env)) for t in a.terms)


def term_at(t: Term, env: Env) -> Term:
    """An open term: `t` with free variables replaced."""
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
    """`t` with its bound variables numbered in one order."""
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
    """Where a bound variable occurs, in words that do not depend on the others' names."""
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


def _mono_marks(p: Poly, v: Var, own: frozenset[Var]) -> list[object]:
    return sorted(
        (
            ["this" if a is v else "other" if a in own else _atom_mark(a, v, own) for a in m],
            c,
        )
        for m, c in p.terms
    )  # type: ignore[type-var]


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
            for p in f.pieces:
                yield from (("top", *w) for w in _in_form(p.value, v, own))
        case _:
            yield (type(f).__name__,)


def _in_form(a: NF, v: Var, own: frozenset[Var]) -> Iterator[tuple[object, ...]]:
    for t in a.terms:
        for f, e in t.powers:
            if v in f.free:
                yield from ((str(e), *w) for w in _in_factor(f, v, own))


def polynomials(a: NF) -> Iterator[Poly]:
    """The index polynomials in a form: of reads, guards and extents."""
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
