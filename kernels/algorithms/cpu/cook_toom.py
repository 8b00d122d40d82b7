"""The Cook-Toom matrices of convolutions with fewer products: Lavin and Gray, arXiv:1509.09308,
section 4; Blahut, Fast algorithms for signal processing, chapter 5."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from math import lcm, prod

import numpy as np

# Multiplications of a product, up to which OpenBLAS computes it in one thread. Products of 9 terms
# are too short for several: they took 10 to 40 times the processor time.
MULTIPLIES_PER_CHUNK = 1 << 18
# Interpolation points with the smallest rounding errors, by their number besides infinity.
INTERPOLATION_POINTS = {
    2: tuple(map(Fraction, ("0", "-1"))),
    3: tuple(map(Fraction, ("0", "1", "-1"))),
    4: tuple(map(Fraction, ("0", "-1", "2/3", "3/2"))),
    5: tuple(map(Fraction, ("0", "2/3", "-2/3", "4/3", "-4/3"))),
    7: tuple(map(Fraction, ("0", "1/2", "-1/2", "1", "-1", "2", "-2"))),
}
# Points whose matrices are of small integers.
INTEGER_POINTS = {n: tuple(map(Fraction, (0, 1, -1, 2, -2)[:n])) for n in range(2, 6)}
# A row of G with integers has at most this sum of absolute values: then two of these times an int8
# are in int16.
MAX_FILTER_ROW_SUM = 15
Matrix = tuple[tuple[Fraction, ...], ...]


def has_points(m: int, r: int, stride: int = 1) -> bool:
    """True if there are points for m outputs of r taps at this stride."""
    return (
        all(1 in (m, k) or m + k - 2 in INTERPOLATION_POINTS for k in phase_taps(r, stride))
        and r >= stride
    )


def phase_taps(r: int, stride: int) -> list[int]:
    """Return how many of r taps fall in each phase: every stride-th input element."""
    return [len(range(p, r, stride)) for p in range(stride)]


@lru_cache
def transform_matrices(
    m: int, r: int, stride: int = 1, integer: bool = False
) -> tuple[Matrix, Matrix, Matrix]:
    """Return (A, G, B) of F(m, r): y = A ((G g) * (B d)), in exact fractions. integer: at points
    for which A and B are of integers.

    At a stride each phase is a convolution of its own, and the output is their sum: stride * m + r
    - stride products, as many as input elements.
    """
    a: list[tuple[Fraction, ...]] = [()] * m
    g, b = [], []
    for phase, k in enumerate(phase_taps(r, stride)):
        one = _unit_stride_matrices(m, k, INTEGER_POINTS if integer else INTERPOLATION_POINTS)
        a = [(*x, *y) for x, y in zip(a, one[0], strict=True)]
        g += [_strided_row(stride, phase, row, r) for row in one[1]]
        b += [_strided_row(stride, phase, row, stride * m + r - stride) for row in one[2]]
    return tuple(a), tuple(g), tuple(b)


def has_integer_points(m: int, r: int, stride: int = 1) -> bool:
    """True if there are integer points for m outputs of r taps at this stride."""
    taps = phase_taps(r, stride)
    return r >= stride and all(1 in (m, k) or m + k - 2 in INTEGER_POINTS for k in taps)


@lru_cache
def integer_matrices(m: int, r: int, stride: int = 1) -> tuple[Matrix, Matrix, Matrix, int]:
    """Return (A, G, B, divisor) of F(m, r), of integers: divisor * y = A ((G g) * (B d))."""
    a, g, b = transform_matrices(m, r, stride, integer=True)
    denominators = [lcm(*(x.denominator for x in row)) for row in g]
    divisor = lcm(*denominators)
    sums = [sum(map(abs, row)) for row in g]
    factors = [
        max(
            n
            for n in range(least, divisor + 1, least)
            if divisor % n == 0 and (n == least or n * total <= MAX_FILTER_ROW_SUM)
        )
        for least, total in zip(denominators, sums, strict=True)
    ]
    scaled_g = tuple(tuple(n * x for x in row) for n, row in zip(factors, g, strict=True))
    scaled_a = tuple(tuple(x * divisor / n for n, x in zip(factors, row, strict=True)) for row in a)
    return scaled_a, scaled_g, b, divisor


@lru_cache
def distinct_rows(m: int, r: int, stride: int = 1, integer: bool = False) -> int:
    """Return the number of rows of G without the equal ones at its end, which belong to a phase of
    one tap."""
    g = integer_matrices(m, r, stride)[1] if integer else transform_matrices(m, r, stride)[1]
    return next(n for n in range(len(g), 0, -1) if n == 1 or g[n - 2] != g[-1])


def transform_operations(m: int, r: int, stride: int = 1) -> tuple[int, int]:
    """Return the multiply-adds of B times an input tile, and of A times all m outputs; ones and
    zeros are free."""
    some = [m + k - 1 for k in phase_taps(r, stride) if k > 1]
    return sum(n * n for n in some), m * sum(some)


def _strided_row(
    stride: int, phase: int, row: Sequence[Fraction], size: int
) -> tuple[Fraction, ...]:
    """Return a row of this size with the elements of `row` at every stride-th place."""
    out = [Fraction(0)] * size
    out[phase::stride] = row
    return tuple(out)


def _unit_stride_matrices(
    m: int, r: int, points_by_number: Mapping[int, tuple[Fraction, ...]]
) -> tuple[Matrix, Matrix, Matrix]:
    """Return the Cook-Toom matrices of F(m, r); trivial ones if m or r is 1."""
    if 1 in (m, r):
        unit = tuple(
            tuple(Fraction(int(i == j)) for j in range(m + r - 1)) for i in range(m + r - 1)
        )
        ones = ((Fraction(1),) * max(m, r),)
        columns = tuple((x,) for x in ones[0])
        return (ones, unit, unit) if m == 1 else (unit, columns, unit)
    points = points_by_number[m + r - 2]
    infinity = (Fraction(0),) * (r - 1) + (Fraction(1),)
    a = tuple((*(p**i for p in points), Fraction(int(i == m - 1))) for i in range(m))
    g, b = [], []
    for n, p in enumerate(points):
        others = [q for k, q in enumerate(points) if k != n]
        scale = Fraction(1)
        for q in others:
            scale *= p - q
        g.append(tuple(p**k / scale for k in range(r)))
        b.append((*_roots(others), Fraction(0)))
    return a, (*g, infinity), (*b, tuple(_roots(points)))


def _roots(points: Sequence[Fraction]) -> list[Fraction]:
    """Return the coefficients of the polynomial with these roots, constant first."""
    out = [Fraction(1)]
    for p in points:
        shifted = [Fraction(0), *out]
        out = [s - p * c for s, c in zip(shifted, [*out, Fraction(0)], strict=True)]
    return out


def to_array(m: Matrix) -> np.ndarray:
    """Return the matrix as float64."""
    return np.array([[float(x) for x in row] for row in m])


def error_amplification(m: int, r: int, stride: int = 1) -> float:
    """Return the error amplification besides that of the sum itself: the largest norm, over
    outputs, of the products' contributions times the norms of the rows of G and B."""
    a, g, b = (to_array(x) ** 2 for x in transform_matrices(m, r, stride))
    return float(np.sqrt((a @ (g.sum(1) * b.sum(1))).max()))


def transform_kernel(forms: Sequence[tuple[int, int, int]], w: np.ndarray) -> np.ndarray:
    """Return u[x, z, k, c] of w[k, c, i, j], for tiles of these (side, taps, stride), computed in
    float64 and rounded once. w[k, c, i] has one column; w[k, c, d, i, j] gives u[x, z, k, d, c]."""
    both, filters = kernel_matrix(forms), filter_rows(w)
    out = np.empty((len(both), len(filters)), w.dtype)
    some = max(MULTIPLIES_PER_CHUNK // both.size, 1)
    for at in range(0, len(filters), some):  # as much as stays in a cache
        out[:, at : at + some] = both @ filters[at : at + some].astype(np.float64).T
    sides = (distinct_rows(*form) for form in forms)
    k, c, *slices = w.shape[: w.ndim - 2] if w.ndim > 3 else w.shape[:2]
    return out.reshape(*sides, k, *slices, c)


def kernel_matrix(forms: Sequence[tuple[int, int, int]]) -> np.ndarray:
    """Return the matrix by which a filter's elements are multiplied, for tiles of these (side,
    taps, stride), in float64."""
    g, h = (to_array(transform_matrices(*form)[1][: distinct_rows(*form)]) for form in forms)
    return np.kron(g, h)


def filter_rows(w: np.ndarray) -> np.ndarray:
    """Return the filters w[k, c, ...] as rows of their elements, those of slices w[k, c, d, i, j]
    in the order k, d, c."""
    if w.ndim == 5:
        w = np.moveaxis(w, 2, 1)
    filters = prod(w.shape[: max(w.ndim - 2, 2)])
    return w.reshape(filters, -1)
