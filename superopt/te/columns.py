"""Elements with provenance as columns of 64-bit integers; see `rounding.py`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from superopt.te.dtype import BF16, F16, F32, F64, DType
from superopt.te.keyed import key, mix

# Rows of a column. The first four hold float64 bits, the others integers: the real value; the value
# as an addend; as a factor; the rational value.
REAL, SUM, PRODUCT, RATIONAL = 0, 1, 2, 3
SAME = 4
HELD = 5  # the narrowest type that represents the element, an index into FLOAT_TYPES
CONST = 6  # 1 for a constant
# How often the element was rounded: 0, 1, or 2 for more often or for an error above half a ulp.
# Nothing is known of the order of elements with 2 except that they lie between LOWER_BOUND and
# UPPER_BOUND.
ROUNDED = 7
LOW, HIGH = 8, 9
ORDER, SUM_ORDER = 10, 11  # comparison keys: as operations, and as sums and products
ROWS = 12
FLOATS = (F64, F32, F16, BF16)  # other float types count as float64 and above
ODD = frozenset(("sin", "tan", "asin", "atan", "sinh", "tanh", "asinh", "atanh", "erf", "round"))
EVEN = frozenset(("cos", "cosh"))
MONOTONE = ODD - {"sin", "tan"} | {"exp", "log", "sqrt", "sigmoid", "acosh"}
POSITIVE = np.int64((1 << 62) - 1)  # keeps the sum of two hashes from overflowing
NEAR = 1e-6  # constants and attributes are rounded to float32


def elements(value: np.ndarray, dtype: DType, *args: np.ndarray, const: int = 1) -> np.ndarray:
    """Return elements of real values that are computed from `args`; the dependent rows are set
    later."""
    out = np.empty((ROWS, *np.shape(value)), np.int64)
    for row in (REAL, SUM, PRODUCT, RATIONAL, ORDER, SUM_ORDER):
        put(out, row, value)
    out[SAME], out[HELD], out[CONST], out[ROUNDED] = 0, held(dtype), const, 0
    for a in args:
        out[CONST] &= a[CONST]
        out[ROUNDED] = np.maximum(out[ROUNDED], a[ROUNDED])
    between(out, -np.inf, np.inf)
    return out


def between(x: np.ndarray, low: np.ndarray | float, high: np.ndarray | float) -> None:
    """Set the bounds of elements; constants are their own bounds. NaN bounds are ignored."""
    value, const = floats(x, REAL), x[CONST] == 1
    for row, bound, none in ((LOW, low, -np.inf), (HIGH, high, np.inf)):
        bound = np.where(np.isnan(bound), none, bound)
        put(x, row, np.where(const & ~np.isnan(value), value, bound))


def rounded_again(x: np.ndarray) -> None:
    x[ROUNDED] = np.minimum(x[ROUNDED] + 1, 2)


def constants(x: np.ndarray, dtype: DType) -> np.ndarray:
    out = elements(x, dtype)
    out[SAME] = constant_keys(x)
    return out


def constant_keys(x: np.ndarray) -> np.ndarray:
    """Return the identity hashes of constants: negation negates the hash, zero has hash 0."""
    sizes = np.abs(x).view(np.int64)
    sign = np.where(x == 0, 0, np.where(np.signbit(x), -1, 1))
    return np.asarray((mixed(sizes) & POSITIVE) * sign)


def floats(x: np.ndarray, row: int) -> np.ndarray:
    return np.asarray(x[row]).view(np.float64)


def put(x: np.ndarray, row: int, value: np.ndarray) -> None:
    x[row] = np.asarray(value, np.float64).view(np.int64)


def held(dtype: DType) -> int:
    return FLOATS.index(dtype) if dtype in FLOATS else len(FLOATS)


def equals(x: np.ndarray, value: int) -> np.ndarray:
    """Return which elements are the constant `value`."""
    return np.asarray((x[CONST] == 1) & (floats(x, REAL) == value))


def negated(x: np.ndarray) -> np.ndarray:
    out = x.copy()
    for row in (REAL, SUM, PRODUCT, RATIONAL, ORDER, SUM_ORDER):
        put(out, row, -floats(x, row))
    put(out, LOW, -floats(x, HIGH))
    put(out, HIGH, -floats(x, LOW))
    out[SAME] = -x[SAME]
    return out


def ordered(x: np.ndarray) -> np.ndarray:
    """Return `x` with comparison keys: the real value; for elements that were rounded more than
    once a pseudorandom number between their bounds, negated for the negated element and equal for
    identical elements."""
    unsure, low, high = x[ROUNDED] == 2, floats(x, LOW), floats(x, HIGH)
    for row, some in ((ORDER, x[SAME] / float(POSITIVE)), (SUM_ORDER, floats(x, SUM))):
        size = np.abs(some)
        inner = low + (high - low) * (1 + some / (1 + size)) / 2
        some = np.where(np.isfinite(low), low + size, some)
        some = np.where(np.isfinite(high), high - size, some)
        some = np.where(np.isfinite(high - low), inner, some)
        put(x, row, np.where(unsure, some, floats(x, REAL)))
    return x


def by_rows(picks: Sequence[np.ndarray], a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Select elements of `a` or `b` separately for each degree of exactness."""
    same, summed, real = picks
    out = np.where(real, a, b)
    for rows, pick in (((SAME, ORDER), same), ((SUM, PRODUCT, SUM_ORDER), summed)):
        for row in rows:
            out[row] = np.where(pick, a[row], b[row])
    alike = (same == summed) & (summed == real)
    out[CONST] &= alike
    out[ROUNDED] = np.where(alike, out[ROUNDED], 2)
    out[HELD] = np.where(alike, out[HELD], np.minimum(a[HELD], b[HELD]))
    return out


def greater(fn: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the elementwise maximum or minimum."""
    hashes = a[SAME] > b[SAME] if fn == "max" else a[SAME] < b[SAME]
    picks = []
    for row in (ORDER, SUM_ORDER, REAL):
        left, right = floats(a, row), floats(b, row)
        first = left > right if fn == "max" else left < right
        picks.append(first | ((left == right) & hashes))
    out = by_rows(picks, a, b)
    own = np.maximum if fn == "max" else np.minimum
    for row in (LOW, HIGH):
        put(out, row, own(floats(a, row), floats(b, row)))
    return out


def absolute(x: np.ndarray) -> np.ndarray:
    out = by_rows([floats(x, row) < 0 for row in (ORDER, SUM_ORDER, REAL)], negated(x), x)
    low, high = floats(x, LOW), floats(x, HIGH)
    sizes = np.maximum(np.abs(low), np.abs(high))
    between(out, np.maximum(0, np.maximum(low, -high)), sizes)
    return out


def product_bounds(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the bounds of products of elements with bounds; squares are not negative."""
    with np.errstate(all="ignore"):
        some = [floats(a, i) * floats(b, j) for i in (LOW, HIGH) for j in (LOW, HIGH)]
    some = [np.where(np.isnan(s), 0.0, s) for s in some]  # 0 times an unbounded value
    low, high = np.minimum.reduce(some), np.maximum.reduce(some)
    square, opposite = a[SAME] == b[SAME], a[SAME] == -b[SAME]
    low = np.where(square, np.maximum(low, 0), low)
    return np.asarray(low), np.asarray(np.where(opposite, np.minimum(high, 0), high))


def reciprocal_bounds(x: np.ndarray) -> np.ndarray:
    """Return `x` with the bounds of its reciprocal."""
    low, high = floats(x, LOW), floats(x, HIGH)
    out = x.copy()
    with np.errstate(all="ignore"):
        one, other = 1 / np.where(high == 0, -0.0, high), 1 / np.where(low == 0, 0.0, low)
    known = (low >= 0) | (high <= 0)
    put(out, LOW, np.where(known, one, -np.inf))
    put(out, HIGH, np.where(known, other, np.inf))
    return out


def as_factor(x: np.ndarray) -> np.ndarray:
    """Return `x`, whose value as an addend is known, with its value as a factor."""
    return other(x, SUM, PRODUCT, "factor")


def as_addend(x: np.ndarray) -> np.ndarray:
    """Return `x`, whose value as a factor is known, with its value as an addend."""
    return other(x, PRODUCT, SUM, "addend")


def other(x: np.ndarray, row: int, to: int, what: str) -> np.ndarray:
    value, const = floats(x, row), x[CONST] == 1
    put(x, to, np.where(const, value, value * (1 + unknown(what, [np.abs(value)]) / 2)))
    if const.any():
        x[SAME] = np.where(const, constant_keys(floats(x, REAL)), x[SAME])
    return x


def unlike(fn: str, args: Sequence[np.ndarray]) -> np.ndarray:
    """Return a function with no law except being odd, even or monotone, bounded away from 0, so
    that a quotient by a sum of them does not depend on how a constant was rounded."""
    if fn in MONOTONE:
        (x,) = args
        value = np.asarray(rising(fn, x) - rising(fn, -x) if fn in ODD else 3 + rising(fn, x))
        return value + 2 * np.sign(x) if fn in ODD else value
    if fn not in ODD and fn not in EVEN:
        return 2 + unknown(fn, args)
    (x,) = args
    value = 2 + unknown(fn, [np.abs(x)])
    return value * np.sign(x) if fn in ODD else value


def rising(fn: str, x: np.ndarray) -> np.ndarray:
    """Return a smooth increasing function with values in (-1, 1) and no other law."""
    some = [1 + (key(0, f"{fn} rises {k}") & 0xFFFF) / 0x8000 for k in range(4)]
    return np.asarray(np.arctan(some[0] * x + some[1]) + np.arctan(some[2] * x - some[3])) / np.pi


def unknown(fn: str, args: Sequence[np.ndarray]) -> np.ndarray:
    """Return a smooth function with values in [-1, 1] and no law."""
    out = np.zeros(())
    for n, a in enumerate(args):
        first, second, third = (1 + (key(n, f"{fn} {k}") & 0xFFFF) / 0x8000 for k in range(3))
        out = np.sin(out + first * np.arctan(a) + second * np.cos(third * np.arctan(a)))
    return np.asarray(out)


def signed_key(seed: int, what: str) -> np.int64:
    """Return `keyed_hash` as a signed integer."""
    return np.uint64(key(seed, what)).astype(np.int64)


def mixed(x: np.ndarray) -> np.ndarray:
    """Return `mix` of signed integers."""
    with np.errstate(over="ignore"):
        return mix(np.asarray(x, np.int64).view(np.uint64)).view(np.int64)
