"""Arithmetic on sizes that may be symbolic: simplified where the ranges decide."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from superopt.ir.op import Attr, InferError
from superopt.te.analysis.size_oracle import is_assumed_at_most
from superopt.te.expr import index
from superopt.te.expr.dtype import BOOL, INDEX
from superopt.te.expr.node import Apply, Const, Dim, Expr


def size_tuple(value: Attr, name: str) -> tuple[Dim, ...]:
    """Return an attribute as a tuple of sizes; a single size becomes a tuple of one."""
    given = value if isinstance(value, tuple) else (value,)
    out: list[Dim] = []
    for v in given:
        if isinstance(v, bool) or not isinstance(v, (int, Expr)):
            raise InferError(f"{name} {value} is not a tuple of sizes")
        out.append(index.dim(v))
    return tuple(out)


def integer_tuple(value: Attr, name: str) -> tuple[int, ...]:
    """Return an attribute as a tuple of static integers; a single one becomes a tuple of one."""
    out: list[int] = []
    for v in size_tuple(value, name):
        if not isinstance(v, int):
            raise InferError(f"{name} {v} is symbolic: it has to be a number here")
        out.append(v)
    return tuple(out)


def single_size(value: Attr, name: str) -> Dim:
    """Return an attribute that is one size, or a tuple of one."""
    values = size_tuple(value, name)
    if len(values) != 1:
        raise InferError(f"{name} {value} is not one number")
    return values[0]


def is_at_most(a: Dim, b: Dim) -> bool:
    """True if a <= b for all values of the symbols, as far as the ranges decide."""
    if type(a) is int and type(b) is int:
        return a <= b
    if _is_at_most(a, b):
        return True
    if isinstance(index.apply("le", (index.as_index(a), index.as_index(b)), BOOL), Const):
        return False
    return is_assumed_at_most(a, b)


def _is_at_most(a: Dim, b: Dim) -> bool:
    x, y = index.as_index(a), index.as_index(b)
    verdict = index.apply("le", (x, y), BOOL)
    if isinstance(verdict, Const):
        return bool(verdict.value)
    match x:
        case Apply("max", (p, q), _):
            return _is_at_most(p, y) and _is_at_most(q, y)
        case Apply("min", (p, q), _) if _is_at_most(p, y) or _is_at_most(q, y):
            return True
        case Apply("floordiv", (p, Const(n)), _) if (
            n >= 1 and _is_at_most(0, p) and _is_at_most(p, y)
        ):
            return True
        case _:
            pass
    match y:
        case Apply("min", (p, q), _):
            return _is_at_most(x, p) and _is_at_most(x, q)
        case Apply("max", (p, q), _):
            return _is_at_most(x, p) or _is_at_most(x, q)
        case _:
            return False


def min_size(a: Dim, b: Dim) -> Dim:
    """min(a, b)."""
    if is_at_most(a, b):
        return a
    if is_at_most(b, a):
        return b
    return index.dim(index.apply("min", (index.as_index(a), index.as_index(b)), INDEX))


def max_size(a: Dim, b: Dim) -> Dim:
    """max(a, b)."""
    if is_at_most(a, b):
        return b
    if is_at_most(b, a):
        return a
    return index.dim(index.apply("max", (index.as_index(a), index.as_index(b)), INDEX))


def subtract_sizes(a: Dim, b: Dim) -> Dim:
    """a - b, moved inside a min or max on the right."""
    match b:
        case Apply("min", (p, q), _):
            return max_size(subtract_sizes(a, index.dim(p)), subtract_sizes(a, index.dim(q)))
        case Apply("max", (p, q), _):
            return min_size(subtract_sizes(a, index.dim(p)), subtract_sizes(a, index.dim(q)))
        case _:
            return index.dim(index.as_index(a) - index.as_index(b))


def floor_div(a: Dim, b: Dim) -> Dim:
    """a / b, rounded down."""
    return index.dim(index.floordiv(index.as_index(a), index.as_index(b)))


def ceil_div(a: Dim, b: Dim) -> Dim:
    """a / b, rounded up."""
    return floor_div(index.dim(index.as_index(a) + index.as_index(b) - 1), b)


def constant_ratios(sizes: Attr, extents: Sequence[Dim]) -> tuple[float, ...] | None:
    """Return the ratios of sizes, of which some are symbolic, to extents; None if one of them
    depends on a symbol."""
    if not isinstance(sizes, tuple) or not any(isinstance(s, Expr) for s in sizes):
        return None
    out = []
    for size, extent in zip(sizes, extents, strict=True):
        p, q = (index.polynomial(index.as_index(d)) for d in (size, extent))  # type: ignore[arg-type]
        ratios = {Fraction(c, q[m]) for m, c in p.items()} if p.keys() == q.keys() else set()
        if len(ratios) != 1:
            return None
        out.append(float(*ratios))
    return tuple(out)
