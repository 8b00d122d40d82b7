"""Translate tensor expressions to normal forms: the proof is about the operators' own
definitions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from superopt.te.dtype import BOOL, INDEX, DType, to_numpy, widens
from superopt.te.expr import Dim, Tensor
from superopt.te.node import Apply, Axis, Const, Expr, Index, Load, Reduce, Size
from superopt.verifier import normal as N
from superopt.verifier import poly as P
from superopt.verifier.algebra import (
    power,
    unknown,
)
from superopt.verifier.attributes import marked
from superopt.verifier.bounds import nonneg
from superopt.verifier.comparisons import equals, less
from superopt.verifier.digits import in_digits
from superopt.verifier.facts import Facts, Guard, eq, ge, negated
from superopt.verifier.integers import as_poly
from superopt.verifier.maxima import greatest_over
from superopt.verifier.normal import NF, Term
from superopt.verifier.poly import Poly
from superopt.verifier.prods import product_over
from superopt.verifier.scalars import applied, number_of
from superopt.verifier.simplify import (
    in_one_form,
    outer_guard,
    quotient,
    summed,
    times,
    where,
)

# Functions that easily leave the range of a small or unsigned type.
WRAPS = frozenset(("add", "sub", "neg", "mul", "pow", "abs"))
# Functions that are the same for all number types.
OF_ANY = frozenset(("add", "sub", "neg", "mul", "max", "min"))
Places = Mapping[str, Poly]  # the indices of the axes of a tensor and of reductions, by name


class Unreadable(Exception):
    """An expression has no normal form here."""


@dataclass(slots=True)
class Reader:
    """Reads elements. min_sizes: lower bounds of symbols. out_of_bounds: reads not shown to be in
    bounds; reads_checked: their total. is_type_dependent: True if the number type matters.
    representative_types: types that stand for others; a cast that widens another type changes
    nothing. input_types: the types of inputs."""

    lows: Mapping[str, int]
    done: dict[object, NF] = field(default_factory=dict)
    outside: list[str] = field(default_factory=list)
    checked: int = 0
    typed: bool = False
    stand_ins: frozenset[DType] = frozenset()
    kinds: dict[str, DType] = field(default_factory=dict)
    roots: Mapping[str, Expr] = field(default_factory=dict)  # sizes n, by names of 1 / sqrt(n)
    # keeps alive the tensors whose identities are keys
    held: list[Tensor] = field(default_factory=list)
    known: Facts = field(default_factory=Facts)  # about sizes

    def dim(self, d: Dim, places: Places | None = None) -> Poly:
        if isinstance(d, int):
            return P.const(d)
        if isinstance(d, Size):
            return P.sym(d.name, self.lows.get(d.name, 1))
        return self.index(d, places or {}, self.known)

    def element(self, t: Tensor, index: tuple[Poly, ...], facts: Facts) -> NF:
        """Return the element of `t` at `index`."""
        self.inside(t, index, facts)
        index = tuple(ZERO if d == 1 else p for p, d in zip(index, t.shape, strict=True))
        if t.body is None:
            self.kinds[t.name] = t.dtype
            one = power(N.read(t.name, index))
            return power(N.truth("is", one)) if t.dtype == BOOL else one
        key = (id(t), index, facts.hypotheses)
        found = self.done.get(key)
        if found is None:
            self.held.append(t)
            places = {a.name: p for a, p in zip(t.axes, index, strict=True)}
            found = self.done[key] = self.value(t.body, places, facts)
        return found

    def inside(self, t: Tensor, index: tuple[Poly, ...], facts: Facts) -> None:
        for p, d in zip(index, t.shape, strict=True):
            self.checked += 1
            n = self.dim(d)
            if len(p.terms) == 1:
                ((m, c),) = p.terms
                if c == 1 and len(m) == 1 and isinstance(m[0], P.Var) and m[0].extent is n:
                    continue
            if not (facts.holds(ge(p)) and facts.holds(ge(n - 1 - p))):
                self.outside.append(f"{t.name}[{p}] of {n} where {facts.hypotheses}")

    # --- indices ----------------------------------------------------------------------------------

    def index(self, e: Expr, places: Places, facts: Facts) -> Poly:
        match e:
            case Const(v):
                return P.const(int(v))
            case Size(name):
                return P.sym(name, self.lows.get(name, 1))
            case Axis(name, _):
                return places[name]
            case Apply(fn, args, _):
                some = [self.index(a, places, facts) for a in args]
                out = some[0]
                match fn:
                    case "add":
                        for p in some[1:]:
                            out = out + p
                        return out
                    case "mul":
                        for p in some[1:]:
                            out = out * p
                        return out
                    case "floordiv" | "mod":
                        q = some[1]
                        if not facts.holds(ge(q - 1)):
                            raise Unreadable(f"{e}: is {q} at least 1?")
                        whole = quotient(out, q, facts)
                        return whole if fn == "floordiv" else in_one_form(out - q * whole, facts)
                    case "min":
                        return _least(some[0], some[1], facts)
                    case "max":
                        return -_least(-some[0], -some[1], facts)
                raise Unreadable(f"{fn} of indices")
            case Index(element, bound):
                of = self.value(element, places, facts)
                n = self.index(bound, places, facts)
                at = as_poly(of, facts)
                if at is not None and facts.holds(ge(n - 1 - at)):
                    if facts.holds(ge(at)):
                        return at
                    if facts.holds(ge(at + n)) and facts.holds(ge(-at - 1)):
                        return at + n
                return P.chosen(of, n)
            case _:
                raise Unreadable(f"index {e}")

    def choice(self, e: Expr, places: Places, facts: Facts) -> Guard | None:
        """Return a guard inside an element that is used as an index, else None."""
        match e:
            case Index(element, _):
                return outer_guard(self.value(element, places, facts))
            case Apply(_, args, _):
                return next((g for a in args if (g := self.choice(a, places, facts))), None)
            case _:
                return None

    def guard(self, e: Apply, places: Places, facts: Facts) -> Guard:
        a, b = (self.index(x, places, facts) for x in e.args)
        match e.fn:
            case "lt":
                return tight(ge(b - a - 1))
            case "le":
                return tight(ge(b - a))
            case "eq":
                return tight(eq(b - a))
            case _:
                return negated(tight(eq(b - a)))

    # --- elements ---------------------------------------------------------------------------------

    def value(self, e: Expr, places: Places, facts: Facts) -> NF:
        if e.dtype == INDEX:
            return N.number(self.index(e, places, facts))
        if e.dtype == BOOL:
            return self.holds(e, True, places, facts)
        match e:
            case Const(v):
                if isinstance(v, float) and not v.is_integer():
                    self.typed = True  # no integer equals it
                size = self.roots.get(marked(v) or "")
                if size is not None:
                    root = applied("sqrt", [N.number(self.index(size, {}, facts))], True, facts)
                    return applied("div", [N.constant(1), root], True, facts)
                return number_of(v)
            case Load(tensor, index, _):
                g = next((g for i in index if (g := self.choice(i, places, facts))), None)
                if g is not None:
                    sides = [(s, facts.plus(s)) for s in (g, negated(g))]
                    return N.plus(
                        *(where(self.value(e, places, more), s, facts) for s, more in sides)
                    )
                return self.element(
                    tensor, tuple(self.index(i, places, facts) for i in index), facts
                )
            case Reduce(fn, axes, body, _):
                return self.reduced(fn, axes, body, places, facts)
            case Apply("select", (guard, yes, no), _):
                return self.chosen(guard, yes, no, places, facts)
            case Apply("cast", (x,), kind):
                self.typed = True
                of = self.value(x, places, facts)
                if kind.is_number and (x.dtype in (BOOL, INDEX) or _bits(of)):
                    return of
                if self.keeps(x.dtype, kind, of):
                    return of
                if of.constant is not None and _has(kind, of.constant):
                    return of
                if kind.is_float and x.dtype.is_int:
                    return unknown(f"cast of an integer to {kind}", [of], facts)
                return unknown(f"cast to {kind}", [of], facts)
            case Apply(fn, args, kind):
                if kind not in self.stand_ins and fn in WRAPS and kind.is_int and _small(kind):
                    raise Unreadable(f"{fn} of {kind} may wrap")
                self.typed = self.typed or fn not in OF_ANY
                some = [self.value(a, places, facts) for a in args]
                return applied(fn, some, kind.is_float, facts)
            case _:
                raise Unreadable(str(e))

    def keeps(self, kind: DType, to: DType, of: NF) -> bool:
        """True if a cast changes nothing: it widens the type, or the type of the input element that
        it reads, which earlier casts may have widened."""
        if not self.stand_ins.isdisjoint((kind, to)):
            return False
        one = of.single
        plain = one.powers if one is not None and one.coefficient == 1 else ()
        first = None
        if len(plain) == 1 and plain[0][1] == 1 and isinstance(plain[0][0], N.Read):
            first = self.kinds.get(plain[0][0].name)
        return widens(kind, to) or (
            first is not None and first not in self.stand_ins and widens(first, to)
        )

    def reduced(
        self, fn: str, axes: tuple[Axis, ...], body: Expr, places: Places, facts: Facts
    ) -> NF:
        fresh = tuple(P.fresh(self.dim(a.extent, places)) for a in axes)
        inner = {**places, **{a.name: P.of(v) for a, v in zip(axes, fresh, strict=True)}}
        fresh, of = in_digits(fresh, self.value(body, inner, facts))
        match fn:
            case "sum":
                return summed(of, fresh, facts)
            case "max" | "any":
                return greatest_over(of, fresh, facts)
            case "min":
                return N.scaled(greatest_over(N.scaled(of, -1), fresh, facts), -1)
            case "all":
                flipped = N.minus(N.constant(1), of)
                return N.minus(N.constant(1), greatest_over(flipped, fresh, facts))
            case _:
                return product_over(of, fresh, facts)

    def chosen(self, guard: Expr, yes: Expr, no: Expr, places: Places, facts: Facts) -> NF:
        out: list[NF] = []
        for side, branch in ((True, yes), (False, no)):
            condition = self.holds(guard, side, places, facts)
            if isinstance(branch, Const) and branch.value == 0:
                continue
            for t in condition.terms:
                more = facts.plus(*t.guards)
                of = self.value(branch, places, more)
                if t.powers or t.coefficient != 1:
                    plain = Term(t.coefficient, (), frozenset(), t.powers)
                    of = times(N.form((plain,)), of, more)
                for g in sorted(t.guards):
                    of = where(of, g, facts)
                out.append(of)
        return N.plus(*out)

    def holds(self, e: Expr, side: bool, places: Places, facts: Facts) -> NF:
        """Return 1 where the bool `e` is `expected`, else 0; guards on indices stay guards."""
        match e:
            case Const(v):
                return N.constant(int(bool(v) == side))
            case Apply("lt" | "le" | "eq" | "ne", (a, _), _) if a.dtype == INDEX:
                g = self.guard(e, places, facts)
                return where(N.constant(1), g if side else negated(g), facts)
            case Apply("lt" | "le" | "eq" | "ne" as fn, (a, b), _):
                x, y = self.value(a, places, facts), self.value(b, places, facts)
                match fn:
                    case "lt":
                        out = less(N.minus(x, y), facts)
                    case "le":
                        out, side = less(N.minus(y, x), facts), not side
                    case _:
                        out, side = equals(N.minus(x, y), facts), side == (fn == "eq")
            case Apply("not", (a,), _):
                return self.holds(a, not side, places, facts)
            case Apply("and" | "or" as fn, (a, b), _):
                first = side == (fn == "and")  # both must be `expected`
                x = self.holds(a, side, places, facts)
                y = self.holds(b, side, places, facts)
                if first:
                    return times(x, y, facts)
                other = self.holds(a, not side, places, facts)
                return N.plus(x, times(other, y, facts))
            case Apply("isnan" | "isinf", _, _):
                return N.constant(int(not side))
            case Apply("xor", (a, b), _):
                x, y = self.holds(a, True, places, facts), self.holds(b, True, places, facts)
                out = N.minus(N.plus(x, y), N.scaled(times(x, y, facts), 2))
            case Apply("select", (guard, yes, no), _):
                out = self.chosen(guard, yes, no, places, facts)
            case Load(tensor, index, _):
                at = tuple(self.index(i, places, facts) for i in index)
                if tensor.body is None:
                    self.inside(tensor, at, facts)
                    at = tuple(ZERO if d == 1 else p for p, d in zip(at, tensor.shape, strict=True))
                    out = power(N.truth("is", power(N.read(tensor.name, at))))
                else:
                    out = self.element(tensor, at, facts)
            case Reduce(fn, axes, body, _):
                out = self.reduced(fn, axes, body, places, facts)
            case Apply("cast", (x,), _):
                out = N.minus(N.constant(1), equals(self.value(x, places, facts), facts))
            case _:
                raise Unreadable(str(e))
        return out if side else N.minus(N.constant(1), out)


ZERO = P.const(0)


def tight(g: Guard) -> Guard:
    """Replace p == 0 by p >= 0 if p is never above 0: a zero remainder has one form."""
    if g.kind == "eq":
        for p in (g.p, -g.p):
            if nonneg(-p):
                return ge(p)
    return g


def _small(kind: DType) -> bool:
    return kind.kind == "u" or kind.bits < 32


def _has(kind: DType, c: Fraction) -> bool:
    """True if the type can represent this number."""
    if not kind.is_float:
        return kind.is_int and c.denominator == 1 and 0 <= c < 1 << (kind.bits - (kind.kind == "i"))
    with np.errstate(all="ignore"):
        near = float(np.asarray(float(c)).astype(to_numpy(kind)))
    return math.isfinite(near) and Fraction(near) == c


def _least(p: Poly, q: Poly, facts: Facts) -> Poly:
    if facts.holds(ge(q - p)):
        return p
    if facts.holds(ge(p - q)):
        return q
    return P.least(p, q)


def _bits(of: NF) -> bool:
    """True for a product of indicators, which is 0 or 1 in every type."""
    if len(of.terms) != 1:
        return False
    (t,) = of.terms
    return t.coefficient == 1 and not t.bound and all(isinstance(f, N.Truth) for f, _ in t.powers)
