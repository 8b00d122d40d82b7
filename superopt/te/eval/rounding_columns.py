"""Elements with provenance as columns of 64-bit integers; see `rounding.py`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from superopt.te.eval.keyed_hash import keyed_hash, mix
from superopt.te.expr.dtype import BF16, F16, F32, F64, DType

# Rows of a column. The first four hold float64 bits, the others integers: the real value; the value
# as an addend; as a factor; the rational value.
REAL_VALUE, ADDEND_VALUE, FACTOR_VALUE, RATIONAL_VALUE = 0, 1, 2, 3
IDENTITY_HASH = 4
NARROWEST_TYPE = 5  # the narrowest type that represents the element, an index into FLOAT_TYPES
IS_CONSTANT = 6  # 1 for a constant
# How often the element was rounded: 0, 1, or 2 for more often or for an error above half a ulp.
# Nothing is known of the order of elements with 2 except that they lie between LOWER_BOUND and
# UPPER_BOUND.
ROUNDING_COUNT = 7
LOWER_BOUND, UPPER_BOUND = 8, 9
ORDER_KEY, REORDERED_ORDER_KEY = 10, 11  # comparison keys: as operations, and as sums and products
ROW_COUNT = 12
FLOAT_TYPES = (F64, F32, F16, BF16)  # other float types count as float64 and above
ODD_FUNCTIONS = frozenset(
    ("sin", "tan", "asin", "atan", "sinh", "tanh", "asinh", "atanh", "erf", "round")
)
EVEN_FUNCTIONS = frozenset(("cos", "cosh"))
MONOTONE_FUNCTIONS = ODD_FUNCTIONS - {"sin", "tan"} | {"exp", "log", "sqrt", "sigmoid", "acosh"}
HASH_MASK = np.int64((1 << 62) - 1)  # keeps the sum of two hashes from overflowing
RELATIVE_TOLERANCE = 1e-6  # constants and attributes are rounded to float32


def make_elements(value: np.ndarray, dtype: DType, *args: np.ndarray, const: int = 1) -> np.ndarray:
    """Return elements of real values that are computed from `args`; the dependent rows are set
    later."""
    out = np.empty((ROW_COUNT, *np.shape(value)), np.int64)
    for row in (
        REAL_VALUE,
        ADDEND_VALUE,
        FACTOR_VALUE,
        RATIONAL_VALUE,
        ORDER_KEY,
        REORDERED_ORDER_KEY,
    ):
        set_float_row(out, row, value)
    out[IDENTITY_HASH], out[NARROWEST_TYPE], out[IS_CONSTANT], out[ROUNDING_COUNT] = (
        0,
        narrowest_type(dtype),
        const,
        0,
    )
    for a in args:
        out[IS_CONSTANT] &= a[IS_CONSTANT]
        out[ROUNDING_COUNT] = np.maximum(out[ROUNDING_COUNT], a[ROUNDING_COUNT])
    set_bounds(out, -np.inf, np.inf)
    return out


def set_bounds(x: np.ndarray, low: np.ndarray | float, high: np.ndarray | float) -> None:
    """Set the bounds of elements; constants are their own bounds. NaN bounds are ignored."""
    value, const = float_row(x, REAL_VALUE), x[IS_CONSTANT] == 1
    for row, bound, none in ((LOWER_BOUND, low, -np.inf), (UPPER_BOUND, high, np.inf)):
        bound = np.where(np.isnan(bound), none, bound)
        set_float_row(x, row, np.where(const & ~np.isnan(value), value, bound))


def count_rounding(x: np.ndarray) -> None:
    x[ROUNDING_COUNT] = np.minimum(x[ROUNDING_COUNT] + 1, 2)


def make_constants(x: np.ndarray, dtype: DType) -> np.ndarray:
    out = make_elements(x, dtype)
    out[IDENTITY_HASH] = constant_hashes(x)
    return out


def constant_hashes(x: np.ndarray) -> np.ndarray:
    """Return the identity hashes of constants: negation negates the hash, zero has hash 0."""
    sizes = np.abs(x).view(np.int64)
    sign = np.where(x == 0, 0, np.where(np.signbit(x), -1, 1))
    return np.asarray((mix_signed(sizes) & HASH_MASK) * sign)


def float_row(x: np.ndarray, row: int) -> np.ndarray:
    return np.asarray(x[row]).view(np.float64)


def set_float_row(x: np.ndarray, row: int, value: np.ndarray) -> None:
    x[row] = np.asarray(value, np.float64).view(np.int64)


def narrowest_type(dtype: DType) -> int:
    return FLOAT_TYPES.index(dtype) if dtype in FLOAT_TYPES else len(FLOAT_TYPES)


def is_constant_equal(x: np.ndarray, value: int) -> np.ndarray:
    """Return which elements are the constant `value`."""
    return np.asarray((x[IS_CONSTANT] == 1) & (float_row(x, REAL_VALUE) == value))


def negate(x: np.ndarray) -> np.ndarray:
    out = x.copy()
    for row in (
        REAL_VALUE,
        ADDEND_VALUE,
        FACTOR_VALUE,
        RATIONAL_VALUE,
        ORDER_KEY,
        REORDERED_ORDER_KEY,
    ):
        set_float_row(out, row, -float_row(x, row))
    set_float_row(out, LOWER_BOUND, -float_row(x, UPPER_BOUND))
    set_float_row(out, UPPER_BOUND, -float_row(x, LOWER_BOUND))
    out[IDENTITY_HASH] = -x[IDENTITY_HASH]
    return out


def with_order_keys(x: np.ndarray) -> np.ndarray:
    """Return `x` with comparison keys: the real value; for elements that were rounded more than
    once a pseudorandom number between their bounds, negated for the negated element and equal for
    identical elements."""
    unsure, low, high = x[ROUNDING_COUNT] == 2, float_row(x, LOWER_BOUND), float_row(x, UPPER_BOUND)
    for row, some in (
        (ORDER_KEY, x[IDENTITY_HASH] / float(HASH_MASK)),
        (REORDERED_ORDER_KEY, float_row(x, ADDEND_VALUE)),
    ):
        size = np.abs(some)
        inner = low + (high - low) * (1 + some / (1 + size)) / 2
        some = np.where(np.isfinite(low), low + size, some)
        some = np.where(np.isfinite(high), high - size, some)
        some = np.where(np.isfinite(high - low), inner, some)
        set_float_row(x, row, np.where(unsure, some, float_row(x, REAL_VALUE)))
    return x


def select_by_degree(picks: Sequence[np.ndarray], a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Select elements of `a` or `b` separately for each degree of exactness."""
    same, summed, real = picks
    out = np.where(real, a, b)
    for rows, pick in (
        ((IDENTITY_HASH, ORDER_KEY), same),
        ((ADDEND_VALUE, FACTOR_VALUE, REORDERED_ORDER_KEY), summed),
    ):
        for row in rows:
            out[row] = np.where(pick, a[row], b[row])
    alike = (same == summed) & (summed == real)
    out[IS_CONSTANT] &= alike
    out[ROUNDING_COUNT] = np.where(alike, out[ROUNDING_COUNT], 2)
    out[NARROWEST_TYPE] = np.where(
        alike, out[NARROWEST_TYPE], np.minimum(a[NARROWEST_TYPE], b[NARROWEST_TYPE])
    )
    return out


def extremum(fn: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the elementwise maximum or minimum."""
    hashes = (
        a[IDENTITY_HASH] > b[IDENTITY_HASH] if fn == "max" else a[IDENTITY_HASH] < b[IDENTITY_HASH]
    )
    picks = []
    for row in (ORDER_KEY, REORDERED_ORDER_KEY, REAL_VALUE):
        left, right = float_row(a, row), float_row(b, row)
        first = left > right if fn == "max" else left < right
        picks.append(first | ((left == right) & hashes))
    out = select_by_degree(picks, a, b)
    own = np.maximum if fn == "max" else np.minimum
    for row in (LOWER_BOUND, UPPER_BOUND):
        set_float_row(out, row, own(float_row(a, row), float_row(b, row)))
    return out


def absolute_value(x: np.ndarray) -> np.ndarray:
    out = select_by_degree(
        [float_row(x, row) < 0 for row in (ORDER_KEY, REORDERED_ORDER_KEY, REAL_VALUE)],
        negate(x),
        x,
    )
    low, high = float_row(x, LOWER_BOUND), float_row(x, UPPER_BOUND)
    sizes = np.maximum(np.abs(low), np.abs(high))
    set_bounds(out, np.maximum(0, np.maximum(low, -high)), sizes)
    return out


def product_bounds(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the bounds of products of elements with bounds; squares are not negative."""
    with np.errstate(all="ignore"):
        some = [
            float_row(a, i) * float_row(b, j)
            for i in (LOWER_BOUND, UPPER_BOUND)
            for j in (LOWER_BOUND, UPPER_BOUND)
        ]
    some = [np.where(np.isnan(s), 0.0, s) for s in some]  # 0 times an unbounded value
    low, high = np.minimum.reduce(some), np.maximum.reduce(some)
    square, opposite = a[IDENTITY_HASH] == b[IDENTITY_HASH], a[IDENTITY_HASH] == -b[IDENTITY_HASH]
    low = np.where(square, np.maximum(low, 0), low)
    return np.asarray(low), np.asarray(np.where(opposite, np.minimum(high, 0), high))


def with_reciprocal_bounds(x: np.ndarray) -> np.ndarray:
    """Return `x` with the bounds of its reciprocal."""
    low, high = float_row(x, LOWER_BOUND), float_row(x, UPPER_BOUND)
    out = x.copy()
    with np.errstate(all="ignore"):
        one, other = 1 / np.where(high == 0, -0.0, high), 1 / np.where(low == 0, 0.0, low)
    known = (low >= 0) | (high <= 0)
    set_float_row(out, LOWER_BOUND, np.where(known, one, -np.inf))
    set_float_row(out, UPPER_BOUND, np.where(known, other, np.inf))
    return out


def as_factor(x: np.ndarray) -> np.ndarray:
    """Return `x`, whose value as an addend is known, with its value as a factor."""
    return convert_role(x, ADDEND_VALUE, FACTOR_VALUE, "factor")


def as_addend(x: np.ndarray) -> np.ndarray:
    """Return `x`, whose value as a factor is known, with its value as an addend."""
    return convert_role(x, FACTOR_VALUE, ADDEND_VALUE, "addend")


def convert_role(x: np.ndarray, row: int, target_row: int, role: str) -> np.ndarray:
    value, const = float_row(x, row), x[IS_CONSTANT] == 1
    set_float_row(
        x,
        target_row,
        np.where(const, value, value * (1 + pseudorandom_value(role, [np.abs(value)]) / 2)),
    )
    if const.any():
        x[IDENTITY_HASH] = np.where(
            const, constant_hashes(float_row(x, REAL_VALUE)), x[IDENTITY_HASH]
        )
    return x


def generic_value(fn: str, args: Sequence[np.ndarray]) -> np.ndarray:
    """Return a function with no law except being odd, even or monotone, bounded away from 0, so
    that a quotient by a sum of them does not depend on how a constant was rounded."""
    if fn in MONOTONE_FUNCTIONS:
        (x,) = args
        value = np.asarray(
            monotone_value(fn, x) - monotone_value(fn, -x)
            if fn in ODD_FUNCTIONS
            else 3 + monotone_value(fn, x)
        )
        return value + 2 * np.sign(x) if fn in ODD_FUNCTIONS else value
    if fn not in ODD_FUNCTIONS and fn not in EVEN_FUNCTIONS:
        return 2 + pseudorandom_value(fn, args)
    (x,) = args
    value = 2 + pseudorandom_value(fn, [np.abs(x)])
    return value * np.sign(x) if fn in ODD_FUNCTIONS else value


def monotone_value(fn: str, x: np.ndarray) -> np.ndarray:
    """Return a smooth increasing function with values in (-1, 1) and no other law."""
    some = [1 + (keyed_hash(0, f"{fn} rises {k}") & 0xFFFF) / 0x8000 for k in range(4)]
    return np.asarray(np.arctan(some[0] * x + some[1]) + np.arctan(some[2] * x - some[3])) / np.pi


def pseudorandom_value(fn: str, args: Sequence[np.ndarray]) -> np.ndarray:
    """Return a smooth function with values in [-1, 1] and no law."""
    out = np.zeros(())
    for n, a in enumerate(args):
        first, second, third = (
            1 + (keyed_hash(n, f"{fn} {k}") & 0xFFFF) / 0x8000 for k in range(3)
        )
        out = np.sin(out + first * np.arctan(a) + second * np.cos(third * np.arctan(a)))
    return np.asarray(out)


def signed_key(seed: int, name: str) -> np.int64:
    """Return `keyed_hash` as a signed integer."""
    return np.uint64(keyed_hash(seed, name)).astype(np.int64)


def mix_signed(x: np.ndarray) -> np.ndarray:
    """Return `mix` of signed integers."""
    with np.errstate(over="ignore"):
        return mix(np.asarray(x, np.int64).view(np.uint64)).view(np.int64)


def elements_agree(degree: int, a: np.ndarray, b: np.ndarray, dtype: DType) -> bool:
    """True if elements are equal to this degree. Integers and bools compare exactly."""
    if not dtype.is_float:
        return bool((a == b).all())
    if degree == 0:
        return bool((a[IDENTITY_HASH] == b[IDENTITY_HASH]).all())
    x, y = (float_row(v, ADDEND_VALUE if degree == 1 else RATIONAL_VALUE) for v in (a, b))
    fine = np.isfinite(x) & np.isfinite(y)
    scale = np.sqrt(np.mean(np.square(x[fine]))) if fine.any() else 0.0
    near = (
        np.abs(x - y)
        <= RELATIVE_TOLERANCE * (scale + np.abs(x)) + RELATIVE_TOLERANCE * RELATIVE_TOLERANCE
    )
    return bool(np.where(fine, near, (x == y) | (np.isnan(x) & np.isnan(y))).all())
