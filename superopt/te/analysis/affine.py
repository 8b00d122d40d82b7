"""Index arithmetic over axes of known extent: intervals, normal forms of // and %, affine forms.

It is stronger than `index.py`, which must also hold for symbolic sizes: here the extent of every
axis is an integer, so that intervals decide more comparisons.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from superopt.te.analysis.walk import operands, with_operands
from superopt.te.expr import index as te_index
from superopt.te.expr.dtype import BOOL, INDEX, DType
from superopt.te.expr.node import Apply, Axis, Const, Expr, Index, Load, Reduce

Interval = tuple[int, int]
Env = Mapping[Expr, Expr]


@dataclass(frozen=True, slots=True)
class Affine:
    """base + sum of coefficient * axis; no coefficient is zero."""

    base: int
    terms: tuple[tuple[Axis, int], ...]

    @property
    def axes(self) -> frozenset[Axis]:
        return frozenset(a for a, _ in self.terms)

    def coefficient(self, axis: Axis) -> int:
        return next((c for a, c in self.terms if a == axis), 0)


def affine(e: Expr) -> Affine | None:
    """Return `e` as an affine form of axes; None where it is not affine."""
    base = 0
    terms: list[tuple[Axis, int]] = []
    for atoms, c in te_index.polynomial(e).items():
        match atoms:
            case ():
                base += c
            case (Axis() as a,):
                terms.append((a, c))
            case _:
                return None
    return Affine(base, tuple(terms))


@lru_cache(maxsize=1 << 16)
def interval(e: Expr) -> Interval | None:
    """Return the least and greatest value of `e`; None where unknown (data, symbolic sizes)."""
    low = high = 0
    p = te_index.polynomial(e)
    for atoms, c in p.items():
        lo = hi = 1
        for a in atoms:
            known = _atom_interval(a)
            if known is None:
                return None
            corners = [x * y for x in (lo, hi) for y in known]
            lo, hi = min(corners), max(corners)
        low += c * (lo if c > 0 else hi)
        high += c * (hi if c > 0 else lo)
    for atoms, c in p.items():
        match atoms:
            case (Apply("floordiv", (x, Const(m)), _),) if m > 0:
                whole = _recombined_interval(p, atoms, c, te_index.as_index(x), int(m))
                if whole is not None:
                    low, high = max(low, whole[0]), min(high, whole[1])
            case _:
                pass
    return low, high


def _recombined_interval(
    p: te_index.Poly, atom: te_index.Monomial, c: int, x: Expr, m: int
) -> Interval | None:
    """Return the bounds of c (a + x // m) + b as those of c ((m a + x) // m) + b: terms may
    cancel."""
    a = {atoms: k // c for atoms, k in p.items() if atoms != atom}
    b = p.get((), 0) % c
    if any(k % c for atoms, k in p.items() if atoms):
        return None
    inner = interval(te_index.as_index(te_index.from_polynomial(a) * m + x))
    if inner is None:
        return None
    ends = sorted(c * (end // m) + b for end in inner)
    return ends[0], ends[1]


def _atom_interval(a: Expr) -> Interval | None:
    match a:
        case Axis(_, int() as n):
            return 0, max(n - 1, 0)
        case Apply("mod", (x, Const(m)), _) if m > 0:
            inner = interval(x)
            if inner is not None and inner[0] >= 0 and inner[1] < m:
                return inner
            return 0, int(m) - 1
        case Apply("floordiv", (x, Const(m)), _) if m > 0:
            inner = interval(x)
            return None if inner is None else (inner[0] // int(m), inner[1] // int(m))
        case Apply("min" | "max" as fn, (x, y), _):
            p, q = interval(x), interval(y)
            if p is None or q is None:
                return None
            pick = min if fn == "min" else max
            return pick(p[0], q[0]), pick(p[1], q[1])
        case Apply("select", (_, x, y), _):
            p, q = interval(x), interval(y)
            return None if p is None or q is None else (min(p[0], q[0]), max(p[1], q[1]))
        case Index(_, Const(n), _):
            return 0, max(int(n) - 1, 0)
        case _:
            return None


@lru_cache(maxsize=1 << 14)
def divmod_normal_form(e: Expr, m: int) -> tuple[Expr, Expr]:
    """Return (e // m, e % m) in normal form, for m >= 1.

    Multiples of m leave both. Common factors cancel: (g x + y) // (g n) = x // n for 0 <= y < g.
    Nested quotients merge: (x + y // n) // m = (n x + y) // (n m).
    """
    whole: te_index.Poly = {}
    rest: te_index.Poly = {}
    for atoms, c in te_index.polynomial(e).items():
        k = c // m if not atoms else (2 * c + m - 1) // (2 * m)  # the remainder in (-m/2, m/2]
        if k:
            whole[atoms] = k
        if c - k * m:
            rest[atoms] = c - k * m
    quotient, r = te_index.from_polynomial(whole), te_index.from_polynomial(rest)
    bounds = interval(r)
    if bounds is not None and bounds[0] // m == bounds[1] // m:
        k = bounds[0] // m
        return te_index.as_index(quotient + k), te_index.as_index(r - k * m)
    for g in sorted({math.gcd(c, m) for atoms, c in rest.items() if atoms} - {1}, reverse=True):
        parted = _split_multiple(rest, g)
        if parted is not None:
            q, r = divmod_normal_form(parted[0], m // g)
            return te_index.as_index(quotient + q), te_index.as_index(r * g + parted[1])
    for atoms, c in rest.items():
        match atoms:
            case (Apply("floordiv", (y, Const(n)), _),) if c == 1 and n > 0:
                others = te_index.from_polynomial({a: k for a, k in rest.items() if a != atoms})
                q, _ = divmod_normal_form(te_index.as_index(others * int(n) + y), m * int(n))
                return te_index.as_index(quotient + q), Apply("mod", (r, Const(m, INDEX)), INDEX)
            case _:
                pass
    by = Const(m, INDEX)
    q = Apply("floordiv", (r, by), INDEX)
    return te_index.as_index(quotient + q), Apply("mod", (r, by), INDEX)


def _split_multiple(p: te_index.Poly, g: int) -> tuple[Expr, Expr] | None:
    """Return (x, y) with p = g x + y and 0 <= y < g; None where there are none."""
    more = {atoms: c // g for atoms, c in p.items() if atoms and c % g == 0}
    less = {atoms: c for atoms, c in p.items() if atoms and c % g}
    span = interval(te_index.from_polynomial(less))
    if span is None:
        return None
    base = p.get((), 0)
    own = (base + span[0]) % g - span[0]  # the part of the base that keeps y >= 0
    if span[1] + own >= g:
        return None
    more[()] = (base - own) // g
    less[()] = own
    return te_index.from_polynomial(more), te_index.from_polynomial(less)


@lru_cache(maxsize=1 << 14)
def expand_mod(e: Expr) -> Expr:
    """Return `e` with every index x % m, for a constant m >= 1, written as x - m (x // m), so that
    m (x // m) + x % m becomes x."""
    new = tuple(map(expand_mod, operands(e)))
    match e, new:
        case Apply("mod", _, dtype), (x, Const(m)) if dtype == INDEX and m > 0:
            return te_index.as_index(x - divmod_normal_form(x, int(m))[0] * int(m))
        case Apply(fn, _, dtype), _:
            return rebuild(fn, new, dtype)
    return with_operands(e, new)


def rebuild(fn: str, args: tuple[Expr, ...], dtype: DType) -> Expr:
    """Return `fn` of `args`, simplified where intervals decide it."""
    match fn, args:
        case "select", (Const(guard), yes, no):
            return yes if guard else no
        case (("and" | "or"), (Const(v, kind), other) | (other, Const(v, kind))) if kind == BOOL:
            return other if bool(v) == (fn == "and") else Const(int(bool(v)), BOOL)
        case "not", (Const(v),):
            return Const(int(not v), BOOL)
        case "cast", (Const(v, kind),) if kind == INDEX and dtype.kind in "iuf":
            return Const(v, dtype)
        case _ if args[0].dtype != INDEX or fn == "cast":
            return Apply(fn, args, dtype)
        case (("add" | "mul"), _):
            out = args[0]
            for a in args[1:]:
                out = te_index.apply(fn, (out, a), INDEX)
            return out
        case (("floordiv" | "mod"), (a, Const(m))) if m > 0:
            q, r = divmod_normal_form(a, int(m))
            return q if fn == "floordiv" else r
        case (("min" | "max"), (a, b)):
            gap = interval(te_index.as_index(b - a))
            if gap is not None and gap[0] >= 0:
                return a if fn == "min" else b
            if gap is not None and gap[1] <= 0:
                return b if fn == "min" else a
            return te_index.apply(fn, args, dtype)
        case (("lt" | "le" | "eq" | "ne"), (a, b)):
            return _simplify_comparison(fn, a, b)
        case _:
            return te_index.apply(fn, args, dtype)


@lru_cache(maxsize=1 << 16)
def _simplify_comparison(fn: str, a: Expr, b: Expr) -> Expr:
    gap = interval(te_index.as_index(b - a))
    verdict = None if gap is None else _decide_comparison(fn, *gap)
    return te_index.apply(fn, (a, b), BOOL) if verdict is None else Const(int(verdict), BOOL)


def _decide_comparison(fn: str, low: int, high: int) -> bool | None:
    """Return whether `a fn b` holds, given low <= b - a <= high; None where undecided."""
    least = 1 if fn == "lt" else 0
    match fn:
        case "lt" | "le":
            return True if low >= least else False if high < least else None
        case _:
            if low == high == 0:
                return fn == "eq"
            return (fn == "ne") if low > 0 or high < 0 else None


SubstitutionMemo = dict[int, tuple[Expr, Expr]]


def substitute(e: Expr, env: Env) -> Expr:
    """Return `e` with axes (and sizes) replaced, simplified.

    Axes bound by an inner Reduce are replaced too if `env` has them; the replacements must have new
    names.
    """
    return _substitute(e, env, {}, False)


def substitute_unsimplified(e: Expr, env: Env, memo: SubstitutionMemo) -> Expr:
    """Return `e` with axes replaced; unchanged subexpressions keep their identity and are not
    simplified.

    memo: results for expressions that share subexpressions, valid for one `env`.
    """
    return _substitute(e, env, memo, True)


def _substitute(e: Expr, env: Env, memo: SubstitutionMemo, keep: bool) -> Expr:
    if isinstance(e, Const):
        return e
    if isinstance(e, Axis):
        return env.get(e, e)
    found = memo.get(id(e))
    if found is not None:
        return found[1]
    out = _substitute_uncached(e, env, memo, keep)
    memo[id(e)] = (e, out)  # holds `e`, so that its id stays unique
    return out


def _substitute_uncached(e: Expr, env: Env, memo: SubstitutionMemo, keep: bool) -> Expr:
    match e:
        case Apply("select", (guard, yes, no), dtype):
            g = _substitute(guard, env, memo, keep)
            if isinstance(g, Const):
                return _substitute(yes if g.value else no, env, memo, keep)
            some = (g, _substitute(yes, env, memo, keep), _substitute(no, env, memo, keep))
            return e if keep and _all_identical(some, e.args) else rebuild("select", some, dtype)
        case Apply(fn, args, dtype):
            args = tuple(_substitute(a, env, memo, keep) for a in args)
            return e if keep and _all_identical(args, e.args) else rebuild(fn, args, dtype)
        case Load(t, index, dtype):
            index = tuple(_substitute(i, env, memo, keep) for i in index)
            return e if keep and _all_identical(index, e.index) else Load(t, index, dtype)
        case Reduce(fn, axes, body, dtype):
            inner = _substitute(body, env, memo, keep)
            return e if keep and inner is body else Reduce(fn, axes, inner, dtype)
        case Index(element, bound, _):
            at, n = (_substitute(x, env, memo, keep) for x in (element, bound))
            return e if keep and at is element and n is bound else Index(at, n)
        case _:
            return env.get(e, e)


def _all_identical(first: tuple[Expr, ...], second: tuple[Expr, ...]) -> bool:
    return all(map(operator.is_, first, second))


def atoms_of(e: Expr) -> Iterator[Expr]:
    """Yield the atoms of an index expression that are not axes."""
    for atoms in te_index.polynomial(e):
        for a in atoms:
            if not isinstance(a, Axis):
                yield a


def free_axes(e: Expr) -> frozenset[Axis]:
    """Return the axes that `e` depends on."""
    out: set[Axis] = set()
    stack: list[tuple[Expr, frozenset[Axis]]] = [(e, frozenset())]
    seen: set[tuple[int, frozenset[Axis]]] = set()
    while stack:
        item, bound = stack.pop()
        if (id(item), bound) in seen:
            continue
        seen.add((id(item), bound))
        match item:
            case Axis():
                if item not in bound:
                    out.add(item)
            case Apply(_, args, _):
                stack.extend((a, bound) for a in args)
            case Load(_, index, _):
                stack.extend((i, bound) for i in index)
            case Reduce(_, axes, body, _):
                stack.append((body, bound | set(axes)))
            case Index(element, n, _):
                stack.extend(((element, bound), (n, bound)))
            case _:
                pass
    return frozenset(out)
