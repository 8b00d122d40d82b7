"""The matrices of Cook and Toom, by which a convolution takes fewer products: Lavin and Gray,
arXiv:1509.09308, section 4; Blahut, Fast algorithms for signal processing, chapter 5."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache

import numpy as np

CHUNK = 4096  # kernels of two dimensions that are transformed at a time
# Points of evaluation whose sums round least, by how many there are beside infinity.
POINTS = {
    0: (),
    3: tuple(map(Fraction, ("0", "1", "-1"))),
    5: tuple(map(Fraction, ("0", "2/3", "-2/3", "4/3", "-4/3"))),
    7: tuple(map(Fraction, ("0", "1/2", "-1/2", "1", "-1", "2", "-2"))),
}
Matrix = tuple[tuple[Fraction, ...], ...]


def known(m: int, r: int) -> bool:
    """Are there points for m outputs of a kernel of r?"""
    return m + r - 2 in POINTS


@lru_cache
def matrices(m: int, r: int) -> tuple[Matrix, Matrix, Matrix]:
    """(A, G, B) of F(m, r) by Cook and Toom: y = A ((G g) * (B d)), in exact fractions."""
    points = POINTS[m + r - 2]
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
    """The coefficients of the polynomial with these roots, the constant one first."""
    out = [Fraction(1)]
    for p in points:
        shifted = [Fraction(0), *out]
        out = [s - p * c for s, c in zip(shifted, [*out, Fraction(0)], strict=True)]
    return out


def array(m: Matrix) -> np.ndarray:
    return np.array([[float(x) for x in row] for row in m])


def amplification(m: int, r: int) -> float:
    """By what rounding grows, other than in the sum itself: the largest, over outputs, of the norm
    of what each product adds to it, by the norms of the rows of G and B."""
    a, g, b = (array(x) ** 2 for x in matrices(m, r))
    return float(np.sqrt((a @ (g.sum(1) * b.sum(1))).max()))


def transformed_kernel(tile: tuple[int, int], w: np.ndarray) -> np.ndarray:
    """u[x, z, k, c] of w[k, c, i, j], for tiles of these sides: in float64, rounded once. Of
    w[k, c, i] there is one column, and of w[k, c, d, i, j] it is u[x, z, k, d, c]."""
    if w.ndim == 3:
        return transformed_kernel(tile, w[..., None])
    if w.ndim == 5:
        k, c, d = w.shape[:3]
        slices = np.moveaxis(w, 2, 1).reshape(k * d, c, *w.shape[3:])
        u = transformed_kernel(tile, slices)
        return u.reshape(*u.shape[:2], k, d, c)
    g, h = (array(matrices(m, r)[1]) for m, r in zip(tile, w.shape[2:], strict=True))
    both = np.kron(g, h)
    k, c = w.shape[:2]
    out = np.empty((len(both), k, c), w.dtype)
    some = max(CHUNK // c, 1)
    for at in range(0, k, some):  # as much as stays in a cache
        part = w[at : at + some].reshape(-1, both.shape[1]).astype(np.float64)
        out[:, at : at + some] = (both @ part.T).reshape(len(both), -1, c)
    return out.reshape(len(g), len(h), k, c)
