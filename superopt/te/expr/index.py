"""Index arithmetic in normal form: integer polynomials over axes, sizes and opaque atoms.

`add`, `sub`, `mul` and `neg` are multiplied out, so that equal polynomials are equal expressions.
`//` and `%` are simplified where the ranges of axes (0 <= axis < extent) and sizes (>= 1) decide
them, and are atoms otherwise. A polynomial is rebuilt as a sum of products in a fixed order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache

from superopt.te.expr.dtype import BOOL, INDEX, DType
from superopt.te.expr.node import Apply, Axis, Const, Dim, Expr, Index, Number, Size

Monomial = tuple[Expr, ...]
Poly = dict[Monomial, int]


def as_index(value: Dim | Expr) -> Expr:
    """Return an int or index expression as an index expression."""
    if isinstance(value, Expr):
        if value.dtype != INDEX:
            raise TypeError(f"{value} is {value.dtype}, not an index; convert it with gather")
        return value
    if type(value) is int:
        return _number(value)
    symbolic: Expr | None = getattr(value, "expr", None)  # of a SymbolicInt
    return _number(int(value)) if symbolic is None else symbolic


@lru_cache(maxsize=1 << 12)
def _number(n: int) -> Const:
    return Const(n, INDEX)


def dim(value: Dim | Number) -> Dim:
    """Return the simplest form of a size: an int where it is one."""
    if type(value) is int:
        return value
    if isinstance(value, Const):
        return int(value.value)
    if isinstance(value, Expr):
        return value
    symbolic: Expr | None = getattr(value, "expr", None)  # of a SymbolicInt
    return int(value) if symbolic is None else symbolic


@lru_cache(maxsize=1 << 16)
def _poly(e: Expr) -> tuple[tuple[Monomial, int], ...]:
    match e:
        case Const(value):
            return (((), int(value)),) if value else ()
        case Apply("add", args, _):
            out: Poly = {}
            for a in args:
                for m, c in _poly(a):
                    out[m] = out.get(m, 0) + c
            return tuple(out.items())
        case Apply("mul", args, _):
            coefficient, atoms = 1, []
            for a in args:
                if isinstance(a, Const):
                    coefficient *= int(a.value)
                else:
                    atoms.append(a)
            return ((tuple(atoms), coefficient),)
        case _:
            return (((e,), 1),)


def polynomial(e: Expr) -> Poly:
    """Return `e` as {product of atoms: coefficient}."""
    return dict(_poly(e))


@lru_cache(maxsize=1 << 16)
def _sort_key(e: Expr) -> tuple[int, str]:
    return (0 if isinstance(e, Size) else 1 if isinstance(e, Axis) else 2, str(e))


def from_polynomial(p: Poly) -> Expr:
    """Return the normal form of a polynomial."""
    terms: list[Expr] = []
    for atoms, c in sorted(
        ((m, c) for m, c in p.items() if c),
        key=lambda t: (-len(t[0]), [_sort_key(a) for a in t[0]]),
    ):
        if not atoms:
            terms.append(Const(c, INDEX))
        elif c == 1 and len(atoms) == 1:
            terms.append(atoms[0])
        else:
            head: tuple[Expr, ...] = () if c == 1 else (Const(c, INDEX),)
            terms.append(Apply("mul", (*atoms, *head), INDEX))
    if not terms:
        return Const(0, INDEX)
    return terms[0] if len(terms) == 1 else Apply("add", tuple(terms), INDEX)


def _add(a: Poly, b: Poly, sign: int = 1) -> Poly:
    out = dict(a)
    for m, c in b.items():
        out[m] = out.get(m, 0) + sign * c
    return {m: c for m, c in out.items() if c}


def _mul(a: Poly, b: Poly) -> Poly:
    out: Poly = {}
    for m, c in a.items():
        for n, d in b.items():
            key = tuple(sorted((*m, *n), key=_sort_key))
            out[key] = out.get(key, 0) + c * d
    return {m: c for m, c in out.items() if c}


@lru_cache(maxsize=1 << 16)
def bounds(e: Expr) -> tuple[int | None, int | None]:
    """Return the least and greatest value of `e`; None where unknown."""
    low: int | None = 0
    high: int | None = 0
    for atoms, c in _poly(e):
        lo, hi = 1, 1
        known_hi = True
        for a in atoms:
            alo, ahi = _atom_bounds(a)
            if alo is None or alo < 0:
                return None, None
            lo *= alo
            if ahi is None:
                known_hi = False
            else:
                hi *= ahi
        if atoms == () or c > 0:
            low = None if low is None else low + c * lo
            high = None if high is None or not known_hi else high + c * hi
        else:
            low = None if low is None or not known_hi else low + c * hi
            high = None if high is None else high + c * lo
    return low, high


def _atom_bounds(a: Expr) -> tuple[int | None, int | None]:
    match a:
        case Size():
            return 1, None
        case Axis(_, extent):
            return 0, (max(extent - 1, 0) if isinstance(extent, int) else None)
        case Apply("mod", (_, Const(n)), _):
            return 0, int(n) - 1
        case Apply("mod", _, _):
            return 0, None
        case Apply("floordiv", (p, Const(n)), _) if n > 0:
            lo, hi = bounds(p)
            d = int(n)
            return (None if lo is None else lo // d), (None if hi is None else hi // d)
        case Apply("floordiv", (p, q), _):
            lo, hi = bounds(p)
            qlo, _ = bounds(q)
            ok = lo is not None and lo >= 0 and qlo is not None and qlo >= 1
            return (0, hi) if ok else (None, None)
        case Apply("min", (p, q), _):
            (plo, phi), (qlo, qhi) = bounds(p), bounds(q)
            his = [h for h in (phi, qhi) if h is not None]
            return (None if plo is None or qlo is None else min(plo, qlo)), min(his, default=None)
        case Apply("max", (p, q), _):
            (plo, phi), (qlo, qhi) = bounds(p), bounds(q)
            los = [v for v in (plo, qlo) if v is not None]
            return max(los, default=None), (None if phi is None or qhi is None else max(phi, qhi))
        case Index(_, bound):
            _, hi = bounds(bound)
            return 0, (None if hi is None else max(hi - 1, 0))
        case _:
            return None, None


def is_in_range(e: Expr, n: Expr) -> bool:
    """True if the ranges imply 0 <= e < n for all values."""
    lo, _ = bounds(e)
    if lo is None or lo < 0:
        return False
    # set every axis to its last value, extent - 1; then n - 1 - e must be >= 0
    top = polynomial(as_index(Const(-1, INDEX)))
    top = _add(top, polynomial(n))
    for atoms, c in polynomial(e).items():
        if c < 0:
            continue
        term: Poly = {(): c}
        for a in atoms:
            match a:
                case Axis(_, extent):
                    term = _mul(term, _add(polynomial(as_index(extent)), {(): -1}))
                case Size() | Const():
                    term = _mul(term, {(a,): 1})
                case _:
                    _, hi = _atom_bounds(a)
                    if hi is None:
                        return False
                    term = _mul(term, {(): hi})
        top = _add(top, term, -1)
    lo, _ = bounds(from_polynomial(top))
    return lo is not None and lo >= 0


def _divide_terms(p: Poly, q: Poly) -> tuple[Poly, Poly]:
    """Return (quotient, remainder): the terms of `p` that the monomial `q` divides, divided, and
    the others."""
    if len(q) != 1:
        return ({(): 1}, {}) if p == q else ({}, p)
    ((qm, qc),) = q.items()
    quotient: Poly = {}
    rest: Poly = {}
    for m, c in p.items():
        left = list(m)
        try:
            for a in qm:
                left.remove(a)
        except ValueError:
            rest[m] = c
            continue
        if c % qc:
            rest[m] = c
        else:
            quotient[tuple(left)] = c // qc
    return quotient, rest


def floordiv(a: Expr, b: Expr) -> Expr:
    """Return a // b for b >= 1, rounded down."""
    q = polynomial(b)
    if not q:
        raise ZeroDivisionError(f"{a} // 0")
    if isinstance(a, Const) and isinstance(b, Const):
        return Const(int(a.value) // int(b.value), INDEX)
    quotient, rest = _divide_terms(polynomial(a), q)
    if not rest:
        return from_polynomial(quotient)
    r = from_polynomial(rest)
    if is_in_range(r, b):
        return from_polynomial(quotient)
    if isinstance(r, Const) and isinstance(b, Const):  # e.g. -1 // 2 of (2 n - 1) // 2
        return from_polynomial(_add(quotient, {(): int(r.value) // int(b.value)}))
    if isinstance(b, Const) and not quotient:
        inner = _flatten_nested(r, int(b.value))
        if inner is not None:
            return inner
    return from_polynomial(_add(quotient, {(Apply("floordiv", (r, b), INDEX),): 1}))


def _flatten_nested(a: Expr, n: int) -> Expr | None:
    match a:  # (x // m) // n = x // (m n)
        case Apply("floordiv", (x, Const(m)), _) if m > 0 and n > 0:
            return floordiv(x, Const(int(m) * n, INDEX))
        case _:
            return None


def mod(a: Expr, b: Expr) -> Expr:
    """Return a % b for b >= 1."""
    q = polynomial(b)
    if not q:
        raise ZeroDivisionError(f"{a} % 0")
    if isinstance(a, Const) and isinstance(b, Const):
        return Const(int(a.value) % int(b.value), INDEX)
    _, rest = _divide_terms(polynomial(a), q)
    if not rest:
        return Const(0, INDEX)
    r = from_polynomial(rest)
    if is_in_range(r, b):
        return r
    if isinstance(r, Const) and isinstance(b, Const):
        return Const(int(r.value) % int(b.value), INDEX)
    return Apply("mod", (r, b), INDEX)


@lru_cache(maxsize=1 << 16)
def apply(fn: str, args: tuple[Expr, ...], dtype: DType) -> Expr:
    """Return `fn` of index expressions in normal form."""
    match fn, args:
        case "add", (a, b):
            return from_polynomial(_add(polynomial(a), polynomial(b)))
        case "sub", (a, b):
            return from_polynomial(_add(polynomial(a), polynomial(b), -1))
        case "mul", (a, b):
            return from_polynomial(_mul(polynomial(a), polynomial(b)))
        case "neg", (a,):
            return from_polynomial(_mul(polynomial(a), {(): -1}))
        case "floordiv", (a, b):
            return floordiv(a, b)
        case "mod", (a, b):
            return mod(a, b)
        case (("min" | "max"), (a, b)):
            lo, hi = _difference_bounds(b, a)
            if lo is not None and lo >= 0:
                return a if fn == "min" else b
            if hi is not None and hi <= 0:
                return b if fn == "min" else a
            return Apply(fn, tuple(sorted((a, b), key=_sort_key)), INDEX)
        case (("lt" | "le" | "eq" | "ne"), (a, b)):
            lo, hi = bounds(from_polynomial(_add(polynomial(b), polynomial(a), -1)))
            verdict = _decide_comparison(fn, lo, hi)
            return Apply(fn, args, BOOL) if verdict is None else Const(int(verdict), BOOL)
        case _:
            return Apply(fn, args, dtype)


def _difference_bounds(a: Expr, b: Expr) -> tuple[int | None, int | None]:
    """Return the bounds of a - b, also where they differ by quotients p // q and r // q."""
    difference = _add(polynomial(a), polynomial(b), -1)
    lo, hi = bounds(from_polynomial(difference))
    base = difference.pop((), 0)
    match [(m[0], c) for m, c in difference.items() if len(m) == 1]:
        case [
            (Apply("floordiv", (p, Const(q))), c),
            (Apply("floordiv", (r, Const(s))), d),
        ] if len(difference) == 2 and q == s > 0 and c == -d:
            low, high = bounds(as_index((p - r) * c))
            lo = base if lo is None and low is not None and low >= 0 else lo
            hi = base if hi is None and high is not None and high <= 0 else hi
    return lo, hi


def _decide_comparison(fn: str, lo: int | None, hi: int | None) -> bool | None:
    """Return whether `a fn b` holds, given lo <= b - a <= hi; None where undecided."""
    match fn:
        case "lt":
            return (
                True if lo is not None and lo > 0 else False if hi is not None and hi <= 0 else None
            )
        case "le":
            return (
                True if lo is not None and lo >= 0 else False if hi is not None and hi < 0 else None
            )
        case _:
            if lo is not None and lo == hi:
                return (lo == 0) == (fn == "eq")
            apart = (lo is not None and lo > 0) or (hi is not None and hi < 0)
            return (fn == "ne") if apart else None


def substitute(e: Expr, env: Mapping[Expr, Expr]) -> Expr:
    """Return `e` with sizes and axes replaced, in normal form."""
    if e in env:
        return env[e]
    match e:
        case Apply(fn, args, dtype) if dtype == INDEX or all(a.dtype == INDEX for a in args):
            parts = [substitute(a, env) for a in args]
            if fn in ("add", "mul"):
                out = parts[0]
                for p in parts[1:]:
                    out = apply(fn, (out, p), INDEX)
                return out
            return apply(fn, tuple(parts), dtype)
        case _:
            return e


def evaluate(value: Dim, sizes: dict[str, int]) -> int:
    """Return the integer value of a size, given the values of its symbols; KeyError names a missing
    one."""
    if isinstance(value, int):
        return value
    match value:
        case Const(v):
            return int(v)
        case Size(name):
            return sizes[name]
        case Apply(fn, args, _):
            values = [evaluate(a, sizes) for a in args]
            match fn:
                case "add":
                    return sum(values)
                case "mul":
                    return math.prod(values)
                case "floordiv":
                    return values[0] // values[1]
                case "mod":
                    return values[0] % values[1]
                case "min":
                    return min(values)
                case "max":
                    return max(values)
    raise TypeError(f"{value} is not a size")


def symbols(value: Dim) -> frozenset[str]:
    """Return the names of the sizes that `value` depends on."""
    match value:
        case Size(name):
            return frozenset((name,))
        case Apply(_, args, _):
            return frozenset().union(*(symbols(a) for a in args))
        case _:
            return frozenset()
