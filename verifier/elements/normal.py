"""Normal forms of elements: sums over bound indices, under guards, of coefficients times atoms.

    sum over k < n where k >= p of  2 * x[i, k] * w[k, j] * exp(y[i])^-1

A form is an ordered tuple of distinct terms. Bound variables are numbered from the inside out, so
forms that differ only in names are identical. This module builds sums and products; `simplify.py`
has what depends on facts (which guards hold).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction

from superopt.verifier.context import ProofContext
from superopt.verifier.elements.factors import Exp as Exp
from superopt.verifier.elements.factors import Factor as Factor
from superopt.verifier.elements.factors import Fn as Fn
from superopt.verifier.elements.factors import Max as Max
from superopt.verifier.elements.factors import Num as Num
from superopt.verifier.elements.factors import Prod as Prod
from superopt.verifier.elements.factors import Read as Read
from superopt.verifier.elements.factors import Sum as Sum
from superopt.verifier.elements.factors import TermKey as TermKey
from superopt.verifier.elements.factors import Truth as Truth
from superopt.verifier.poly import polynomial
from superopt.verifier.poly.facts import Guard
from superopt.verifier.poly.polynomial import Atom, ElementIndex, Min, Poly, Quotient, Var


@dataclass(frozen=True, slots=True)
class Piece:
    """A value for each assignment of the bound variables that satisfies the guards."""

    bound: tuple[Var, ...]
    guards: frozenset[Guard]
    value: NF

    def __str__(self) -> str:
        return f"{self.value} for {self.bound} where {[str(g) for g in self.guards]}"


Power = tuple[Factor, Fraction]


@dataclass(frozen=True, slots=True)
class Term:
    """coefficient * sum over `bound` where `guards` hold of the product of `powers`."""

    coefficient: Fraction
    bound: tuple[Var, ...]
    guards: frozenset[Guard]
    powers: tuple[Power, ...]
    _keys: list[TermKey] = field(default_factory=list, compare=False, repr=False)

    @property
    def key(self) -> TermKey:
        if not self._keys:
            self._keys.append(TermKey(self.bound, self.guards, self.powers))
        return self._keys[0]

    def __hash__(self) -> int:
        return hash((self.coefficient, self.key))

    def __str__(self) -> str:
        over = f"sum_{self.bound} " if self.bound else ""
        where = f"[{', '.join(map(str, sorted(self.guards)))}] " if self.guards else ""
        powers = [f"{f}" if e == 1 else f"{f}^{e}" for f, e in self.powers]
        return f"{self.coefficient} {over}{where}{' * '.join(powers)}".strip()


class NF:
    """A normal form; equal forms are identical."""

    __slots__ = ("_vars", "context", "level", "number", "terms")

    def __init__(self, context: ProofContext, terms: tuple[Term, ...], number: int) -> None:
        self.context, self.terms, self.number = context, terms, number
        self.level = max((term_level(t) for t in terms), default=0)
        self._vars: frozenset[Var] | None = None

    def __hash__(self) -> int:
        return self.number

    def __repr__(self) -> str:
        return " + ".join(map(str, self.terms)) or "0"

    @property
    def vars(self) -> frozenset[Var]:
        """The free variables."""
        if self._vars is None:
            self._vars = frozenset().union(*(term_free_vars(t) for t in self.terms))
        return self._vars

    @property
    def constant(self) -> Fraction | None:
        """The value of a constant form, else None."""
        if not self.terms:
            return Fraction(0)
        t = self.terms[0]
        if len(self.terms) == 1 and not (t.bound or t.guards or t.powers):
            return t.coefficient
        return None

    @property
    def single_term(self) -> Term | None:
        """The only term, if it has no guards and no bound variables."""
        if len(self.terms) == 1 and not self.terms[0].bound and not self.terms[0].guards:
            return self.terms[0]
        return None


def term_level(t: Term) -> int:
    """Return a level above the bound variables of a term and of everything inside it."""
    inner = max((f.level for f, _ in t.powers), default=0)
    return max(inner, max((v.level for v in t.bound), default=0))


def term_free_vars(t: Term) -> frozenset[Var]:
    found: set[Var] = set()
    for f, _ in t.powers:
        found |= f.free_vars
    for g in t.guards:
        found |= g.p.vars
    for v in t.bound:
        found |= v.extent.vars
    return frozenset(found.difference(t.bound))


# --- interning ------------------------------------------------------------------------------------


def _next_number(context: ProofContext) -> int:
    context.created_forms += 1
    return context.created_forms


def from_terms(context: ProofContext, terms: Iterable[Term]) -> NF:
    """Return the sum of closed terms."""
    context.tick()
    merged: dict[object, Term] = {}
    for t in terms:
        old = merged.get(t.key)
        if old is None:
            merged[t.key] = t
        else:
            merged[t.key] = Term(old.coefficient + t.coefficient, t.bound, t.guards, t.powers)
    rest = [t for t in merged.values() if t.coefficient]
    key = frozenset(rest)
    found = context.forms.get(key)
    if found is None:
        rest.sort(key=_term_order)
        found = context.forms[key] = NF(context, tuple(rest), _next_number(context))
    return found


def _term_order(t: Term) -> tuple[object, ...]:
    return (
        len(t.powers),
        len(t.bound),
        [(f.number, e) for f, e in t.powers],
        [v.number for v in t.bound],
        sorted((g.kind, g.p.number) for g in t.guards),
    )


def _intern_factor(
    context: ProofContext, key: object, f: Factor, free: frozenset[Var], level: int
) -> Factor:
    found = context.factors.get(key)
    if found is None:
        f.context, f.number, f.free_vars, f.level = context, _next_number(context), free, level
        found = context.factors[key] = f
    return found


NO_VARS: frozenset[Var] = frozenset()


def read(context: ProofContext, name: str, index: tuple[Poly, ...]) -> Factor:
    free = NO_VARS.union(*(p.vars for p in index))
    return _intern_factor(context, ("read", name, index), Read(name, index), free, _level(index))


def _level(polys: Iterable[Poly]) -> int:
    """Return a level above what is bound in elements that are used as indices."""
    out = 0
    for p in polys:
        for a in p.atoms():
            match a:
                case ElementIndex():
                    out = max(out, a.element.level)  # type: ignore[attr-defined]
                case Quotient() | Min():
                    out = max(out, _level((a.p, a.q)))
                case _:
                    pass
    return out


def num(a: Atom) -> Factor:
    p = polynomial.atom_poly(a)
    return _intern_factor(a.context, ("num", a), Num(a), p.vars, _level((p,)))


def fn(name: str, args: tuple[NF, ...]) -> Factor:
    free = NO_VARS.union(*(a.vars for a in args))
    level = max(a.level for a in args)
    return _intern_factor(args[0].context, ("fn", name, args), Fn(name, args), free, level)


def exp(argument: NF) -> Factor:
    return _intern_unary(("exp", argument), Exp(argument), argument)


def sum_factor(argument: NF) -> Factor:
    return _intern_unary(("total", argument), Sum(argument), argument)


def truth(name: str, argument: NF) -> Factor:
    return _intern_unary(("truth", name, argument), Truth(name, argument), argument)


def _intern_unary(key: object, f: Factor, argument: NF) -> Factor:
    return _intern_factor(argument.context, key, f, argument.vars, argument.level)


def piece_free_vars(p: Piece) -> frozenset[Var]:
    found = set(p.value.vars)
    for g in p.guards:
        found |= g.p.vars
    for v in p.bound:
        found |= v.extent.vars
    return frozenset(found.difference(p.bound))


def piece_level(p: Piece) -> int:
    return max(p.value.level, max((v.level for v in p.bound), default=0))


def maximum(pieces: frozenset[Piece]) -> Factor:
    """Return the maximum of closed pieces; a set, since max is idempotent."""
    free = NO_VARS.union(*(piece_free_vars(p) for p in pieces))
    level = max((piece_level(p) for p in pieces), default=0)
    ordered = tuple(sorted(pieces, key=lambda p: (p.value.number, [v.number for v in p.bound])))
    return _intern_factor(ordered[0].value.context, ("top", pieces), Max(ordered), free, level)


def prod(piece: Piece) -> Factor:
    free, level = piece_free_vars(piece), piece_level(piece)
    return _intern_factor(piece.value.context, ("prod", piece), Prod(piece), free, level)


# --- building -------------------------------------------------------------------------------------


def zero(context: ProofContext) -> NF:
    return from_terms(context, ())


def constant(context: ProofContext, c: Fraction | int) -> NF:
    return from_terms(context, (Term(Fraction(c), (), frozenset(), ()),) if c else ())


def factor_power(f: Factor, power: Fraction | int = 1) -> NF:
    return from_terms(f.context, (Term(Fraction(1), (), frozenset(), ((f, Fraction(power)),)),))


def scale(a: NF, c: Fraction | int) -> NF:
    if c == 1:
        return a
    if not c:
        return zero(a.context)
    return from_terms(
        a.context, (Term(t.coefficient * c, t.bound, t.guards, t.powers) for t in a.terms)
    )


def add(first: NF, *rest: NF) -> NF:
    return from_terms(first.context, (t for a in (first, *rest) for t in a.terms))


def add_all(context: ProofContext, forms: Iterable[NF]) -> NF:
    """Return the sum of any number of forms."""
    return from_terms(context, (t for a in forms for t in a.terms))


def subtract(a: NF, b: NF) -> NF:
    return add(a, scale(b, -1))


def from_poly(p: Poly) -> NF:
    """Return an index or size as a number."""
    out: list[Term] = []
    for m, c in p.terms:
        powers: dict[Factor, Fraction] = {}
        for a in m:
            f = num(a)
            powers[f] = powers.get(f, Fraction(0)) + 1
        out.append(Term(Fraction(c), (), frozenset(), tuple(sorted(powers.items()))))
    return from_terms(p.context, out)


def merge_powers(a: Iterable[Power], b: Iterable[Power]) -> tuple[Power, ...] | None:
    """Return the product of two products."""
    powers = dict(a)
    for f, e in b:
        powers[f] = powers.get(f, Fraction(0)) + e
    rest = [(f, Fraction(1) if isinstance(f, Truth) else e) for f, e in powers.items() if e]
    rest.sort(key=lambda p: p[0].number)
    return tuple(rest)
