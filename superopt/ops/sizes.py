"""Arithmetic on sizes that may be symbolic: simplified where the ranges decide."""

from __future__ import annotations

from superopt.ir.op import Attr, InferError
from superopt.te import index as ix
from superopt.te.assume import undecided
from superopt.te.dtype import BOOL, INDEX
from superopt.te.node import Apply, Const, Dim, Expr


def sizes(value: Attr, what: str) -> tuple[Dim, ...]:
    """Return an attribute as a tuple of sizes; a single size becomes a tuple of one."""
    given = value if isinstance(value, tuple) else (value,)
    out: list[Dim] = []
    for v in given:
        if isinstance(v, bool) or not isinstance(v, (int, Expr)):
            raise InferError(f"{what} {value} is no tuple of sizes")
        out.append(ix.dim(v))
    return tuple(out)


def integers(value: Attr, what: str) -> tuple[int, ...]:
    """Return an attribute as a tuple of static integers; a single one becomes a tuple of one."""
    out: list[int] = []
    for v in sizes(value, what):
        if not isinstance(v, int):
            raise InferError(f"{what} {v} is symbolic: it has to be a number here")
        out.append(v)
    return tuple(out)


def scalar(value: Attr, what: str) -> Dim:
    """Return an attribute that is one size, or a tuple of one."""
    values = sizes(value, what)
    if len(values) != 1:
        raise InferError(f"{what} {value} is not one number")
    return values[0]


def at_most(a: Dim, b: Dim) -> bool:
    """True if a <= b for all values of the symbols, as far as the ranges decide."""
    if _at_most(a, b):
        return True
    if isinstance(ix.apply("le", (ix.as_index(a), ix.as_index(b)), BOOL), Const):
        return False
    return undecided(a, b)


def _at_most(a: Dim, b: Dim) -> bool:
    x, y = ix.as_index(a), ix.as_index(b)
    verdict = ix.apply("le", (x, y), BOOL)
    if isinstance(verdict, Const):
        return bool(verdict.value)
    match x:
        case Apply("max", (p, q), _):
            return _at_most(p, y) and _at_most(q, y)
        case Apply("min", (p, q), _) if _at_most(p, y) or _at_most(q, y):
            return True
        case Apply("floordiv", (p, Const(n)), _) if n >= 1 and _at_most(0, p) and _at_most(p, y):
            return True
        case _:
            pass
    match y:
        case Apply("min", (p, q), _):
            return _at_most(x, p) and _at_most(x, q)
        case Apply("max", (p, q), _):
            return _at_most(x, p) or _at_most(x, q)
        case _:
            return False


def smaller(a: Dim, b: Dim) -> Dim:
    """min(a, b)."""
    if at_most(a, b):
        return a
    if at_most(b, a):
        return b
    return ix.dim(ix.apply("min", (ix.as_index(a), ix.as_index(b)), INDEX))


def larger(a: Dim, b: Dim) -> Dim:
    """max(a, b)."""
    if at_most(a, b):
        return b
    if at_most(b, a):
        return a
    return ix.dim(ix.apply("max", (ix.as_index(a), ix.as_index(b)), INDEX))


def minus(a: Dim, b: Dim) -> Dim:
    """a - b, moved inside a min or max on the right."""
    match b:
        case Apply("min", (p, q), _):
            return larger(minus(a, ix.dim(p)), minus(a, ix.dim(q)))
        case Apply("max", (p, q), _):
            return smaller(minus(a, ix.dim(p)), minus(a, ix.dim(q)))
        case _:
            return ix.dim(ix.as_index(a) - ix.as_index(b))


def floor_div(a: Dim, b: Dim) -> Dim:
    """a / b, rounded down."""
    return ix.dim(ix.floordiv(ix.as_index(a), ix.as_index(b)))


def ceil_div(a: Dim, b: Dim) -> Dim:
    """a / b, rounded up."""
    return floor_div(ix.dim(ix.as_index(a) + ix.as_index(b) - 1), b)
