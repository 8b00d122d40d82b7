"""Exact arithmetic on pairs of residues: int64 arrays (2, ...), modulo p and modulo q.

p = 2 q + 1 and q are primes, so that the squares modulo p are a group of order q and exponents of
its elements count modulo q. Both are below 2^31, so that products fit in 64 bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache

import numpy as np

from superopt.te.eval import blas

P = 2147483579
Q = 1073741789
MODULI = (P, Q)
_LIMB_BITS = 16  # bits of the lower part of a residue in a matrix product
_MAX_DIRECT_MULTIPLICATIONS = 1 << 15  # matrix products with fewer multiplications do not use BLAS
_MAX_UNSIGNED_DEPTH = 4  # so many products of residues sum exactly in 64 bits
_MAX_EXACT_DEPTH = 1 << 18  # so many limb products sum exactly in float64
_DIGIT_BITS = 15  # bits of an exponent's digit


def reduce_modulo(x: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Return `x`, non-negative integers, reduced by the moduli; `x` may have the first component
    only."""
    out = np.empty_like(x) if out is None else out
    for n, m in enumerate(MODULI):
        given = x[n : n + 1]
        # numpy divides by a scalar far faster than it takes remainders
        np.subtract(given, np.floor_divide(given, m) * m, out=out[n : n + 1])
    return out


def add(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return a + b, in [0, m), of residues in [0, m)."""
    out: np.ndarray = a + b
    for n, m in enumerate(MODULI):
        part = out[n : n + 1]
        # a difference below 0 is a large unsigned number
        np.minimum(part.view(np.uint64), (part - m).view(np.uint64), out=part.view(np.uint64))
    return out


def multiply(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    product: np.ndarray = a * b
    return reduce_modulo(product, product)


def negate(a: np.ndarray) -> np.ndarray:
    """Return -a, in [0, m); `a` may have the first component only."""
    moduli = np.array(MODULI[: len(a)], np.int64).reshape(-1, *(1,) * (a.ndim - 1))
    return reduce_modulo(moduli - a)


def from_number(value: int | Fraction) -> np.ndarray:
    """Return a number as a pair of residues."""
    exact = Fraction(value)
    pair = [exact.numerator * pow(exact.denominator, -1, m) % m for m in MODULI]
    return np.array(pair, np.int64)


def from_integers(x: np.ndarray) -> np.ndarray:
    """Return an array of integers (or bools) as pairs."""
    if x.dtype == np.uint64:
        parts = [(x % np.uint64(m)).astype(np.int64) for m in MODULI]
    else:
        wide = x.astype(np.int64)
        parts = [np.remainder(wide, m) for m in MODULI]
    return np.stack(parts)


@lru_cache(maxsize=1)
def _powers_of_two() -> tuple[int, np.ndarray]:
    low, high = -1200, 1100
    rows = [[pow(2, e, m) for e in range(low, high)] for m in MODULI]
    return low, np.array(rows, np.int64)


def from_floats(x: np.ndarray) -> np.ndarray:
    """Return an array of finite floats as the fractions that they are."""
    fraction, exponent = np.frexp(x.astype(np.float64))
    digits = from_integers((fraction * 2.0**53).astype(np.int64))
    low, powers = _powers_of_two()
    return multiply(digits, powers[:, exponent.astype(np.int64) - 53 - low])


def power(x: np.ndarray, exponents: Sequence[int]) -> np.ndarray:
    """Return x ** e with a non-negative exponent for each of the two components."""
    out = np.ones_like(x)
    square = x
    left = list(exponents)
    while any(left):
        raised = multiply(out, square)
        for n, e in enumerate(left):
            if e & 1:
                out[n] = raised[n]
        left = [e >> 1 for e in left]
        if any(left):
            square = multiply(square, square)
    return out


def inverse(x: np.ndarray) -> np.ndarray:
    """Return 1 / x; 0 for x = 0."""
    return np.stack([_inverses(part, m) for part, m in zip(x, MODULI, strict=True)])


def _inverses(x: np.ndarray, m: int) -> np.ndarray:
    """Return the inverses modulo m by one inversion and three products an element (Montgomery): of
    the product of all, then down a tree of products."""
    flat = x.reshape(-1)
    zero = flat == 0
    levels = [np.where(zero, 1, flat)]
    while len(levels[-1]) > 1:
        some = levels[-1]
        if len(some) % 2:
            some = levels[-1] = np.append(some, 1)
        levels.append(_multiply_modulo(some[0::2], some[1::2], m))
    found = np.array([pow(v, -1, m) for v in levels.pop().tolist()], np.int64)
    for some in reversed(levels):
        found = found[: len(some) // 2]
        both = np.empty(len(some), np.int64)
        both[0::2] = _multiply_modulo(found, some[1::2], m)
        both[1::2] = _multiply_modulo(found, some[0::2], m)
        found = both
    return np.where(zero, 0, found[: len(flat)]).reshape(x.shape)


def _multiply_modulo(a: np.ndarray, b: np.ndarray, m: int) -> np.ndarray:
    product: np.ndarray = a * b
    return np.asarray(product - np.floor_divide(product, m) * m)


@lru_cache(maxsize=16)
def _exponential_table(base: int) -> np.ndarray:
    """Return base ** d and base ** (d << 15) modulo p for all digits d."""
    table = np.ones((2, 1 << _DIGIT_BITS), np.int64)
    for row, step in zip(table, (base, pow(base, 1 << _DIGIT_BITS, P)), strict=True):
        for n in range(_DIGIT_BITS):  # doubles the table
            row[1 << n : 2 << n] = row[: 1 << n] * pow(step, 1 << n, P) % P
    return table


def exponential(base: int, exponent: np.ndarray) -> np.ndarray:
    """Return base ** exponent modulo p for exponents in [0, q), an array without components."""
    low, high = _exponential_table(base)
    product = low[exponent & ((1 << _DIGIT_BITS) - 1)] * high[exponent >> _DIGIT_BITS]
    return np.asarray(product % P)


def sum_over(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """Return sums over `axes` (negative), which keep length 1; up to 2^32 terms."""
    return reduce_modulo(np.add.reduce(x, axis=axes, keepdims=True))


def product_over(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """Return products over `axes` (negative), which keep length 1."""
    for axis in axes:
        x = np.moveaxis(x, axis, 1)
        while x.shape[1] > 1:
            half = x.shape[1] // 2
            folded = multiply(x[:, :half], x[:, half : 2 * half])
            x = np.concatenate((folded, x[:, 2 * half :]), axis=1)
        if x.shape[1] == 0:
            x = np.ones((2, 1, *x.shape[2:]), np.int64)
        x = np.moveaxis(x, 1, axis)
    return x


def matmul(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return products of the matrices in the last two axes, broadcast over the axes between."""
    depth = a.shape[-1]
    if depth > _MAX_EXACT_DEPTH:
        half = depth // 2
        return add(matmul(a[..., :half], b[..., :half, :]), matmul(a[..., half:], b[..., half:, :]))
    work = depth * a.shape[-2] * b.shape[-1]
    parts = [
        (_small_product if work <= _MAX_DIRECT_MULTIPLICATIONS else _blas_product)(x, y, m)
        for x, y, m in zip(a, b, MODULI, strict=True)
    ]
    return np.stack(parts)


def _small_product(a: np.ndarray, b: np.ndarray, m: int) -> np.ndarray:
    """Return the product by one integer product, or by two: of the lower and of the upper bits of
    `a`."""
    if a.shape[-1] <= _MAX_UNSIGNED_DEPTH:
        exact = np.matmul(a.view(np.uint64), b.view(np.uint64))
        return np.asarray(exact - np.floor_divide(exact, np.uint64(m)) * np.uint64(m)).view(
            np.int64
        )
    low = np.matmul(a & ((1 << _LIMB_BITS) - 1), b) % m
    high = np.matmul(a >> _LIMB_BITS, b) % m
    return np.asarray(((high << _LIMB_BITS) + low) % m)


def _blas_product(a: np.ndarray, b: np.ndarray, m: int) -> np.ndarray:
    """Return the product by three float64 products (Karatsuba), each of integers below 2^53."""
    a1, a0 = (
        (a >> _LIMB_BITS).astype(np.float64),
        (a & ((1 << _LIMB_BITS) - 1)).astype(np.float64),
    )
    b1, b0 = (
        (b >> _LIMB_BITS).astype(np.float64),
        (b & ((1 << _LIMB_BITS) - 1)).astype(np.float64),
    )
    high, low = blas.matmul(a1, b1), blas.matmul(a0, b0)
    middle = (blas.matmul(a1 + a0, b1 + b0) - high - low).astype(np.int64) % m
    top = (high.astype(np.int64) % m) * ((1 << (2 * _LIMB_BITS)) % m) % m
    return np.asarray((top + (middle << _LIMB_BITS) + low.astype(np.int64)) % m)
