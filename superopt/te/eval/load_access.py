"""Classify a load's access: affine indices, an affine row-major address, or a padded view.

direct   x[i, 2 j + k - 1]          one affine form for each dimension
         x[(4 i + j) // 6, (4 i + j) % 6]   one form, the row-major address: a reshape is a view
padded   select(0 <= f and f < n, x[f], c)  a view of x with padding c
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from superopt.te.analysis.affine import Affine, affine, expand_mod, free_axes, interval
from superopt.te.expr import index as te_index
from superopt.te.expr.dtype import INDEX
from superopt.te.expr.node import Apply, Const, Dim, Expr, Load


@dataclass(frozen=True, slots=True)
class DirectAccess:
    """A load with affine indices; `flat` if there is one form, the row-major address."""

    forms: tuple[Affine, ...]
    flat: bool


@dataclass(frozen=True, slots=True)
class PaddedAccess:
    """`load` where low <= index <= high in every dimension, else `fill`, which depends on no
    axis."""

    load: Load
    forms: tuple[Affine, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]
    fill: Expr


def static_shape(shape: tuple[Dim, ...], name: str) -> tuple[int, ...]:
    """Return a shape of integers; TypeError names a symbolic size."""
    out: list[int] = []
    for d in shape:
        if not isinstance(d, int):
            raise TypeError(f"{name} has the symbolic size {d}: bind it first")
        out.append(d)
    return tuple(out)


def direct_access(load: Load) -> DirectAccess | None:
    """Return the affine access of a load that is always in range; None if there is none."""
    shape = static_shape(load.tensor.shape, load.tensor.name)
    for i, n in zip(load.index, shape, strict=True):
        known = interval(i)
        if known is None or known[0] < 0 or known[1] >= n:
            return None
    forms = [affine(i) for i in load.index]
    plain = tuple(f for f in forms if f is not None)
    if len(plain) == len(forms):
        return DirectAccess(plain, flat=False)
    total: Expr = Const(0, INDEX)
    for axis, i in enumerate(load.index):
        total = te_index.as_index(total + i * math.prod(shape[axis + 1 :]))
    whole = affine(expand_mod(total))
    return None if whole is None else DirectAccess((whole,), flat=True)


def conjuncts(guard: Expr) -> list[Expr]:
    """Return the terms of a conjunction."""
    match guard:
        case Apply("and", (a, b), _):
            return conjuncts(a) + conjuncts(b)
        case _:
            return [guard]


def padded_access(guard: Expr, yes: Expr, no: Expr) -> tuple[PaddedAccess, list[Expr]] | None:
    """Return `select(guard, yes, no)` as a padded load, and the terms of the guard that do not
    bound it; None where the terms that do bound it do not keep the load in range."""
    if not isinstance(yes, Load) or free_axes(no):
        return None
    shape = static_shape(yes.tensor.shape, yes.tensor.name)
    forms = [affine(i) for i in yes.index]
    ranges = [interval(i) for i in yes.index]
    plain = tuple(f for f in forms if f is not None)
    known = [r for r in ranges if r is not None]
    if len(plain) != len(forms) or len(known) != len(forms):
        return None
    low, high = [r[0] for r in known], [r[1] for r in known]
    rest: list[Expr] = []
    terms = conjuncts(guard)
    for term in terms:
        match _match_bound(term, yes.index):
            case None:
                rest.append(term)
            case axis, 1, limit:
                low[axis] = max(low[axis], limit)
            case axis, _, limit:
                high[axis] = min(high[axis], limit)
    inside = all(a >= 0 and b < n for a, b, n in zip(low, high, shape, strict=True))
    if len(rest) == len(terms) or not inside:
        return None
    return PaddedAccess(yes, plain, tuple(low), tuple(high), no), rest


def _match_bound(term: Expr, index: tuple[Expr, ...]) -> tuple[int, int, int] | None:
    """Return (dimension, 1, l) for index >= l, (dimension, -1, h) for index <= h; None
    otherwise."""
    match term:
        case Apply("lt" | "le" as fn, (a, b), _) if a.dtype == INDEX:
            gap = te_index.as_index(b - a - (1 if fn == "lt" else 0))  # holds where gap >= 0
        case _:
            return None
    for axis, i in enumerate(index):
        if affine(i) is None or not free_axes(i):
            continue
        less = te_index.as_index(gap - i)
        if isinstance(less, Const):
            return axis, 1, -int(less.value)
        more = te_index.as_index(gap + i)
        if isinstance(more, Const):
            return axis, -1, int(more.value)
    return None
