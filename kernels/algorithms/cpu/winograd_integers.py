"""Winograd's convolution of integers (winograd.py), exact modulo 2^32.

Matrices of integers (cook_toom.integer_matrices) compute a multiple of the result:

    n * y = A ((G w G') * (B d B')) A'

Tiles of uint8 and filters of int8 fit into int16 after their transforms, whatever their values.
Products and sums are of int32, modulo 2^32. n = 2^t * q with q odd, which has an inverse there; so
n * y gives y modulo 2^(32 - t), and that is y if the sum is in a signed integer of 32 - t bits. Of
int8 filters of C channels and r taps |y| <= 255 * 128 * r * C; of actual filters it is less.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from superopt.kernels.algorithms.cpu.cook_toom import (
    MULTIPLIES_PER_CHUNK,
    distinct_rows,
    integer_matrices,
    to_array,
)
from superopt.kernels.algorithms.cpu.tiled_convolution import TiledConvolution
from superopt.kernels.llvm.dot_products.products import LANES
from superopt.te.expr import index
from superopt.te.expr.dtype import I8, I16, I32, U8
from superopt.te.expr.node import Apply, Const, Expr
from superopt.te.expr.tensor import Tensor, cast, const, reduce_sum, select

PAIR = 2
MAX_INPUT, MAX_WEIGHT = 255, 128
MAX_INT16 = (1 << 15) - 1
Form = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Integers:
    """The arithmetic of a convolution of integers. shape: k, channels and vectors of a panel of the
    filter; divisor: n above."""

    shape: tuple[int, int, int]
    divisor: int

    @property
    def filter_shape(self) -> tuple[int, ...]:
        """The shape of a matrix of the transformed filter: panels, pairs of channels, vectors."""
        k, channels, vectors = self.shape
        return k // (LANES * vectors), channels // PAIR, vectors, LANES, PAIR

    def element(self, factor: Expr) -> Expr:
        """Return an element of the image in int16."""
        found = int16_element(factor)
        assert found is not None
        return found

    def sum_of_products(
        self, v: Tensor, tile: Sequence[Expr], u: Tensor, matrix: Sequence[Expr], o: Expr
    ) -> Expr:
        """Return the sum over channels of a tile's element, for output channel `o`."""
        _, channels, vectors = self.shape
        panel = index.as_index(o // (LANES * vectors))
        vector, lane = index.as_index(o // LANES % vectors), index.as_index(o % LANES)

        def product(p: Expr, r: Expr) -> Expr:
            a = v[(*tile, index.as_index(p * PAIR + r))]
            b = u[(*matrix, panel, p, vector, lane, r)]
            return cast(a, I32) * cast(b, I32)

        return reduce_sum((channels // PAIR, PAIR), product)

    def divide(self, multiple: Expr) -> Expr:
        """Return y of n * y."""
        twos = (self.divisor & -self.divisor).bit_length() - 1
        odd = self.divisor >> twos
        if odd > 1:
            inverse = int(np.uint32(pow(odd, -1, 1 << 32)).astype(np.int32))
            multiple = multiple * const(inverse, I32)
        return Expr.apply("shr", multiple, const(twos, I32)) if twos else multiple


def int16_element(factor: Expr) -> Expr | None:
    """Return an int32 factor of values of uint8 as int16; None if it may have others."""
    found = _int16_range(factor)
    return None if found is None or found[1] < 0 or found[2] > MAX_INPUT else found[0]


def _int16_range(e: Expr) -> tuple[Expr, int, int] | None:
    """Return an expression of int32 in int16, with its least and largest value."""
    match e:
        case Const(value=int(v), dtype=dtype) if dtype == I32 and abs(v) <= MAX_INPUT:
            return const(v, I16), v, v
        case Apply("cast", (x,)) if x.dtype in (I8, U8):
            low, high = (-MAX_WEIGHT, MAX_WEIGHT - 1) if x.dtype == I8 else (0, MAX_INPUT)
            return cast(x, I16), low, high
        case Apply("add", (x, y)):
            a, b = _int16_range(x), _int16_range(y)
            return None if a is None or b is None else (a[0] + b[0], a[1] + b[1], a[2] + b[2])
        case Apply("select", (guard, x, y)):
            a, b = _int16_range(x), _int16_range(y)
            if a is None or b is None:
                return None
            return select(guard, a[0], b[0]), min(a[1], b[1]), max(a[2], b[2])
    return None


def divisor(forms: Sequence[Form]) -> int:
    """Return by what the transformed result is divided."""
    return prod(integer_matrices(*form)[3] for form in forms)


def is_exact(forms: Sequence[Form], sum_limit: int) -> bool:
    """True if tiles and filters fit into int16, and a sum of at most `sum_limit` results from what
    is computed modulo 2^32."""
    by_rows, by_columns = (integer_matrices(*form) for form in forms)
    tiles = np.kron(to_array(by_rows[2]), to_array(by_columns[2]))
    positive, negative = (np.maximum(x, 0).sum(1).max() for x in (tiles, -tiles))
    filters = np.abs(np.kron(to_array(by_rows[1]), to_array(by_columns[1]))).sum(1).max()
    n = divisor(forms)
    return bool(
        max(positive, negative) * MAX_INPUT <= MAX_INT16
        and filters * MAX_WEIGHT <= MAX_INT16
        and sum_limit * (n & -n) < 1 << 31
    )


def largest_sum(p: TiledConvolution) -> int:
    """Return the largest absolute value of a sum of a convolution, whatever its filter."""
    return MAX_INPUT * MAX_WEIGHT * p.channels * prod(p.window)


def transform_filter(
    forms: tuple[Form, Form], window: tuple[int, ...], vectors: int, w: np.ndarray
) -> np.ndarray:
    """Return u of an int8 filter w[k, c, i, j]: by matrix, panel of columns, pair of channels."""
    w = w[(slice(None), slice(None), *map(slice, window))]
    assert w.dtype == np.int8, w.dtype
    k, c = w.shape[:2]
    g, h = (to_array(integer_matrices(*f)[1][: distinct_rows(*f, True)]) for f in forms)
    both = np.kron(g, h)
    filters = w.reshape(k * c, both.shape[1])
    u = np.empty((len(both), k * c), np.int16)
    some = max(MULTIPLIES_PER_CHUNK // both.size, 1)
    for at in range(0, k * c, some):
        exact = both @ filters[at : at + some].astype(np.float64).T
        assert np.abs(exact).max(initial=0) <= MAX_INT16
        u[:, at : at + some] = exact
    parts = u.reshape(len(g), len(h), -1, vectors, LANES, c // PAIR, PAIR)
    return np.ascontiguousarray(parts.transpose(0, 1, 2, 5, 3, 4, 6))
