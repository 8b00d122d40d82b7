"""The number of keys that a query attends to under a mask that compares positions.

A key masked by -inf contributes exp(-inf) = 0. A finite mask value does so only if no score can
compensate it. Keys stored as float16 are at most 65504, so a score is at most the query's L1 norm
times that; the kernel computes the norm. NaN in a masked key or value does not reach the result,
where the unmasked formula would spread it.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from functools import reduce
from math import inf

import numpy as np

from superopt.te.analysis.walk import index_axes, loads, subexpressions
from superopt.te.expr import index
from superopt.te.expr.dtype import BOOL, F16, I64, INDEX
from superopt.te.expr.node import Apply, Axis, Const, Expr, Load
from superopt.te.expr.tensor import const

MAX_EXP_UNDERFLOW = 200.0  # exp(-x) is 0 in float32 for x above this
SUM_ROUNDING_FACTOR = 1.01  # bound on a computed sum over its exact value


@dataclass(frozen=True, slots=True)
class VisibleKeys:
    """Query i needs only keys j <= i + offset: if its L1 norm is at most `max_query_norm`, or
    always (None)."""

    offset: int
    max_query_norm: float | None


def visible_keys(
    x: Expr, i: Axis, j: Axis, product: Load | None, key_dtype: object
) -> VisibleKeys | None:
    """Return which keys the mask in the scores `x` leaves, with `product` the dot product and
    key_dtype the keys' type in memory; None if it masks none or is not recognised."""
    found = _match_mask(x, i, j)
    if found is None:
        return None
    offset, least, rest = found
    if least == -inf:
        return VisibleKeys(offset, None)
    scale = _constant_scale(rest, product)
    if offset < 0 or key_dtype != F16 or scale is None or not least < -MAX_EXP_UNDERFLOW:
        return None
    largest = float(np.finfo(np.float16).max) * abs(scale) * 2 * SUM_ROUNDING_FACTOR
    return VisibleKeys(offset, (-least - MAX_EXP_UNDERFLOW) / largest if largest else None)


@dataclass(frozen=True, slots=True)
class CausalSkip:
    """Query i sees keys j <= i + offset, an index of sizes. The scores of others are `least`, plus
    the dot product times `scale` (0 where it is not in them), plus `padding`, if that is not None:
    an expression of keys, and not of queries."""

    offset: Expr
    least: float
    scale: float
    padding: Expr | None = None


def causal_skip(x: Expr, i: Axis, j: Axis, product: Load) -> CausalSkip | None:
    """Return which keys the mask in the scores `x` hides, by positions; None if it hides none or
    the scores of hidden keys have other terms."""
    offsets = (_position_comparison(e, i, j) for e in subexpressions(x))
    for offset in dict.fromkeys(found[0] for found in offsets if found is not None):
        terms = _linear_terms(_hidden_value(x, i, j, offset), product)
        if terms is None or not terms.constant < 0:
            continue
        if not any(i in index_axes(e) or _reads_along(e, i) for e in terms.others):
            padding = reduce(operator.add, terms.others) if terms.others else None
            return CausalSkip(offset, terms.constant, terms.scale, padding)
    return None


def _reads_along(e: Expr, axis: Axis) -> bool:
    """True if an expression loads elements at an index of the axis."""
    return any(axis in index_axes(i) for x in loads(e) for i in x.index)


def _position_comparison(test: Expr, i: Axis, j: Axis) -> tuple[Expr, bool] | None:
    """Match a comparison of positions, which may be i64: (offset, True if it holds for
    j <= i + offset, False if for all others)."""
    match test:
        case Apply("le" | "lt" as fn, (x, y)):
            a, b = position_index(x), position_index(y)
            if a is None or b is None:
                return None
            rest = dict(index.polynomial(index.as_index(b - a)))
            signs = rest.pop((i,), 0), rest.pop((j,), 0)
            if signs not in ((1, -1), (-1, 1)) or any(
                {i, j} & index_axes(atom) for atoms in rest for atom in atoms
            ):
                return None
            c = index.as_index(index.from_polynomial(rest) - (fn == "lt"))
            return (c, True) if signs == (1, -1) else (index.as_index(-c - 1), False)
    return None


def position_index(e: Expr) -> Expr | None:
    """Return an integer that is computed of positions as an index; None for another one."""
    if e.dtype == INDEX:
        return e
    match e:
        case Const(value) if e.dtype == I64:
            return index.as_index(int(value))
        case Apply("cast", (x,), dtype) if dtype == I64 and x.dtype == INDEX:
            return x
        case Apply("add" | "sub" as fn, (a, b), dtype) if dtype == I64:
            left, right = position_index(a), position_index(b)
            if left is not None and right is not None:
                return index.as_index(left + right if fn == "add" else left - right)
    return None


def _hidden_value(e: Expr, i: Axis, j: Axis, offset: Expr) -> Expr:
    """Return `e` for keys j > i + offset: comparisons of positions with this offset are known."""

    def known(x: Expr) -> bool | None:
        return bool(x.value) if isinstance(x, Const) and x.dtype == BOOL else None

    def visit(e: Expr) -> Expr:
        found = _position_comparison(e, i, j)
        if found is not None and found[0] == offset:
            return const(not found[1], BOOL)
        if not isinstance(e, Apply) or e.dtype == INDEX:
            return e
        args = tuple(map(visit, e.args))
        match e.fn, args:
            case "select", (guard, yes, no) if known(guard) is not None or yes == no:
                return yes if yes == no or known(guard) else no
            case "not", (x,) if known(x) is not None:
                return const(not known(x), BOOL)
            case "and" | "or" as fn, some:
                if any(known(x) == (fn == "or") for x in some if known(x) is not None):
                    return const(fn == "or", BOOL)
                rest = tuple(x for x in some if known(x) is None)
                if len(rest) <= 1:
                    return rest[0] if rest else const(fn == "and", BOOL)
                return Apply(fn, rest, e.dtype)
        return Apply(e.fn, args, e.dtype)

    return visit(e)


@dataclass(frozen=True, slots=True)
class _LinearTerms:
    """The product times `scale`, plus a constant, plus others, which do not have the product."""

    scale: float = 0.0
    constant: float = 0.0
    others: tuple[Expr, ...] = ()

    def times(self, factor: float) -> _LinearTerms | None:
        if self.others:
            return None
        return _LinearTerms(self.scale * factor, self.constant * factor)

    def plus(self, x: _LinearTerms) -> _LinearTerms:
        others = (*self.others, *x.others)
        return _LinearTerms(self.scale + x.scale, self.constant + x.constant, others)


def _linear_terms(e: Expr, product: Load) -> _LinearTerms | None:
    """Return the terms of `e`; None if the product is in it in another way."""
    match e:
        case Const(value):
            return _LinearTerms(constant=float(value))
        case Load() if e == product:
            return _LinearTerms(scale=1.0)
        case Apply("add", (a, b)):
            left, right = _linear_terms(a, product), _linear_terms(b, product)
            return None if left is None or right is None else left.plus(right)
        case _ if not any(x == product for x in loads(e)):
            return _LinearTerms(others=(e,))
        case Apply("mul", (a, Const(c))) | Apply("mul", (Const(c), a)):
            found = _linear_terms(a, product)
            return None if found is None else found.times(float(c))
        case Apply("div", (a, Const(c))) if c:
            found = _linear_terms(a, product)
            return None if found is None else found.times(1 / float(c))
    return None


def scale_and_mask_offset(
    x: Expr, i: Axis, j: Axis, product: Load, max_product: float
) -> tuple[float, int | None] | None:
    """Return the factor of `product` (at most max_product in size) in the scores, and the offset of
    a mask that no score compensates (or None); None if the scores contain anything else."""
    found = _match_mask(x, i, j)
    offset, least, rest = (None, -inf, x) if found is None else found
    scale = _constant_scale(rest, product)
    if scale is None or not (
        least == -inf
        or least < -2 * SUM_ROUNDING_FACTOR * max_product * abs(scale) - MAX_EXP_UNDERFLOW
    ):
        return None
    return scale, offset


def _match_mask(x: Expr, i: Axis, j: Axis) -> tuple[int, float, Expr] | None:
    """Match one mask in `x`: (offset, the value that masked keys get or have added, the unmasked
    scores)."""
    match x:
        case Apply("select", (test, yes, no)):
            found = _compare_offset(test, i, j)
            if found is not None:
                offset, keeps = found
                kept, least = (yes, no) if keeps else (no, yes)
                if isinstance(least, Const):
                    return offset, float(least.value), kept
        case Apply("add", (a, b)):
            for e, other in ((a, b), (b, a)):
                inner = _match_mask(e, i, j)
                if inner is None:
                    continue
                offset, least_, kept = inner
                if kept == Const(0, kept.dtype):
                    return offset, least_, other
                if least_ == -inf:
                    return offset, least_, x
    return None


def _compare_offset(test: Expr, i: Axis, j: Axis) -> tuple[int, bool] | None:
    """Match a comparison of positions: (offset, True if it holds for j <= i + offset, False if for
    all others)."""
    match test:
        case Apply("not", (inner,)):
            found = _compare_offset(inner, i, j)
            return None if found is None else (found[0], not found[1])
        case Apply("le" | "lt" as fn, (a, b)) if a.dtype == b.dtype == INDEX:
            terms = dict(index.polynomial(index.as_index(b - a)))
            c = terms.pop((), 0) - (fn == "lt")
            if terms == {(i,): 1, (j,): -1}:
                return c, True
            if terms == {(i,): -1, (j,): 1}:
                return -c - 1, False
    return None


def _constant_scale(e: Expr, product: Load | None) -> float | None:
    """Return the constant factor of the product in `e`; None if `e` contains anything else."""
    match e:
        case Load():
            return 1.0 if e == product else None
        case Apply("mul", (a, Const(c))) | Apply("mul", (Const(c), a)):
            found = _constant_scale(a, product)
            return None if found is None else found * float(c)
        case Apply("div", (a, Const(c))) if c:
            found = _constant_scale(a, product)
            return None if found is None else found / float(c)
    return None
