"""The number of keys that a query attends to under a mask that compares positions.

A key masked by -inf contributes exp(-inf) = 0. A finite mask value does so only if no score can
compensate it. Keys stored as float16 are at most 65504, so a score is at most the query's L1 norm
times that; the kernel computes the norm. NaN in a masked key or value does not reach the result,
where the unmasked formula would spread it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np

from superopt.te.expr import index
from superopt.te.expr.dtype import F16, INDEX
from superopt.te.expr.node import Apply, Axis, Const, Expr, Load

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
    """Query i sees keys j <= i + offset. The scores of others are `least`, or that plus the dot
    product times `scale`."""

    offset: int
    least: float
    scale: float


def causal_skip(x: Expr, i: Axis, j: Axis, product: Load) -> CausalSkip | None:
    """Return which keys the mask in the scores `x` hides, by positions; None if it hides none or
    the scores have other terms."""
    found = _match_mask(x, i, j)
    scale = None if found is None else _constant_scale(found[2], product)
    return None if found is None or scale is None else CausalSkip(found[0], found[1], scale)


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
