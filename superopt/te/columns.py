"""Elements that know how they came about, as columns of 64-bit integers: see `rounding.py`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from superopt.te.dtype import BF16, F16, F32, F64, DType
from superopt.te.keyed import key, mix

# The real value; as an addend, as a factor; the rational value: floats, the others are integers.
REAL, SUM, PRODUCT, RATIONAL = 0, 1, 2, 3
SAME = 4
HELD = 5  # the narrowest type that holds the element, counted in FLOATS
CONST = 6  # is it a constant?
ROUGH = 7  # may it be off by more than one rounding? Then a greater one may be of a less argument
ROWS = 8
FLOATS = (F64, F32, F16, BF16)  # any other float type is counted as the one behind them
ODD = frozenset(("sin", "tan", "asin", "atan", "sinh", "tanh", "asinh", "atanh", "erf", "round"))
EVEN = frozenset(("cos", "cosh"))
POSITIVE = np.int64((1 << 62) - 1)  # so that no sum of two hashes overflows
NEAR = 1e-6  # constants and attributes are rounded to float32


def elements(value: np.ndarray, dtype: DType, *args: np.ndarray, const: int = 1) -> np.ndarray:
    """Elements of real values that are computed from others; all that hangs on them is to come."""
    out = np.empty((ROWS, *np.shape(value)), np.int64)
    for row in (REAL, SUM, PRODUCT, RATIONAL):
        put(out, row, value)
    out[SAME], out[HELD], out[CONST], out[ROUGH] = 0, held(dtype), const, 0
    for a in args:
        out[CONST] &= a[CONST]
        out[ROUGH] |= a[ROUGH]
    return out


def constants(x: np.ndarray, dtype: DType) -> np.ndarray:
    out = elements(x, dtype)
    out[SAME] = constant_keys(x)
    return out


def constant_keys(x: np.ndarray) -> np.ndarray:
    """What stands for a constant among operations: of its opposite the opposite, of zero zero."""
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
    """Which elements are this constant?"""
    return np.asarray((x[CONST] == 1) & (floats(x, REAL) == value))


def negated(x: np.ndarray) -> np.ndarray:
    out = x.copy()
    for row in (REAL, SUM, PRODUCT, RATIONAL):
        put(out, row, -floats(x, row))
    out[SAME] = -x[SAME]
    return out


def greater(fn: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The one of two elements that is the greater, or less. Of two that are rough it is not known
    which one is, but that any order has laws: there the hashes are compared."""
    left, right = floats(a, REAL), floats(b, REAL)
    hashes = a[SAME] > b[SAME] if fn == "max" else a[SAME] < b[SAME]
    first = (left > right if fn == "max" else left < right) | ((left == right) & hashes)
    out = np.where(first, a, b)
    rough = ((a[ROUGH] | b[ROUGH]) == 1) & ((a[CONST] | b[CONST]) == 0)
    out[SAME] = np.where(rough, np.where(hashes, a[SAME], b[SAME]), out[SAME])
    out[ROUGH] |= rough
    return out


def as_factor(x: np.ndarray) -> np.ndarray:
    """`x`, known as an addend, with what it is as a factor."""
    return other(x, SUM, PRODUCT, "factor")


def as_addend(x: np.ndarray) -> np.ndarray:
    """`x`, known as a factor, with what it is as an addend."""
    return other(x, PRODUCT, SUM, "addend")


def other(x: np.ndarray, row: int, to: int, what: str) -> np.ndarray:
    value, const = floats(x, row), x[CONST] == 1
    put(x, to, np.where(const, value, value * (1 + unknown(what, [np.abs(value)]) / 2)))
    if const.any():
        x[SAME] = np.where(const, constant_keys(floats(x, REAL)), x[SAME])
    return x


def unlike(fn: str, args: Sequence[np.ndarray]) -> np.ndarray:
    """A function that has no law but to be odd, or even, and is far from 0: what is divided by a
    sum of them must not hang on how a constant was rounded."""
    if fn not in ODD and fn not in EVEN:
        return 2 + unknown(fn, args)
    (x,) = args
    value = 2 + unknown(fn, [np.abs(x)])
    return value * np.sign(x) if fn in ODD else value


def unknown(fn: str, args: Sequence[np.ndarray]) -> np.ndarray:
    """A smooth function, between -1 and 1, that has no law."""
    out = np.zeros(())
    for n, a in enumerate(args):
        first, second, third = (1 + (key(n, f"{fn} {k}") & 0xFFFF) / 0x8000 for k in range(3))
        out = np.sin(out + first * np.arctan(a) + second * np.cos(third * np.arctan(a)))
    return np.asarray(out)


def signed_key(seed: int, what: str) -> np.int64:
    """`key`, as these columns store it."""
    return np.uint64(key(seed, what)).astype(np.int64)


def mixed(x: np.ndarray) -> np.ndarray:
    """`mix`, of signed numbers."""
    with np.errstate(over="ignore"):
        return mix(np.asarray(x, np.int64).view(np.uint64)).view(np.int64)
