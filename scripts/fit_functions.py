"""Fit the polynomials of kernels/llvm/math/vector_math.py by weighted least squares of relative
errors.

python scripts/fit_functions.py

Prints the coefficients as kernels use them (float32), and the errors of their evaluation in float32
at 200,001 points.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

POINTS, ROUNDS = 4000, 200


def nodes(low: float, high: float) -> np.ndarray:
    """Chebyshev's points of an interval."""
    k = np.arange(POINTS)
    return (low + high) / 2 + (high - low) / 2 * np.cos(np.pi * (k + 0.5) / POINTS)


def reweighted(w: np.ndarray, error: np.ndarray) -> np.ndarray:
    """More weight where the error is large: in the limit the largest is least (Lawson, 1961)."""
    return w * (error / error.max() + 1e-3) ** 0.3


def odd(f: Callable[[float], float], high: float, p: int, q: int) -> tuple[np.ndarray, np.ndarray]:
    """f(x) = x P(x^2) / Q(x^2) for |x| <= high, Q(0) = 1, by degrees in x^2."""
    x = nodes(1e-3, high)
    y = np.array([f(v) / v for v in x])
    s = x * x / (high * high)
    w = below = np.ones(POINTS)
    best = (math.inf, x, x)
    for _ in range(ROUNDS):
        above = s[:, None] ** np.arange(p + 1)
        under = -y[:, None] * s[:, None] ** np.arange(1, q + 1)
        scale = (w / (np.abs(y) * below))[:, None]
        found = np.linalg.lstsq(np.hstack([above, under]) * scale, y * scale[:, 0], rcond=None)[0]
        top, bottom = found[: p + 1], np.concatenate([[1.0], found[p + 1 :]])
        below = np.polyval(bottom[::-1], s)
        error = np.abs(np.polyval(top[::-1], s) / below / y - 1)
        if error.max() < best[0]:
            powers = high * high
            best = (
                error.max(),
                top / powers ** np.arange(p + 1),
                bottom / powers ** np.arange(q + 1),
            )
        w = reweighted(w, error)
    return best[1], best[2]


def exponential(degree: int) -> np.ndarray:
    """e^x = 1 + x + x^2 R(x) for |x| <= ln(2) / 2."""
    x = nodes(-math.log(2) / 2, math.log(2) / 2)
    y = (np.exp(x) - 1 - x) / x**2
    w = np.ones(POINTS)
    for _ in range(ROUNDS):
        scale = (w * x**2 / np.exp(x))[:, None]
        found = np.linalg.lstsq(
            x[:, None] ** np.arange(degree - 1) * scale, y * scale[:, 0], rcond=None
        )[0]
        error = np.abs((1 + x + x * x * np.polyval(found[::-1], x)) / np.exp(x) - 1)
        w = reweighted(w, error)
    return np.concatenate([[1.0, 1.0], found])


def shown(name: str, coefficients: np.ndarray) -> None:
    print(f"{name} = (" + ", ".join(repr(float(np.float32(c))) for c in coefficients) + ")")


def main() -> None:
    for name, f, high, p, q in (("ERF", math.erf, 4.0, 6, 4), ("TANH", math.tanh, 9.0, 5, 3)):
        top, bottom = odd(f, high, p, q)
        shown(f"{name}_ABOVE", top)
        shown(f"{name}_BELOW", bottom)
        x = np.linspace(-high, high, 200_001, dtype=np.float32)
        t = x * x
        got = x * _horner(top, t) / _horner(bottom, t)
        print(
            f"  largest absolute error {np.abs(got - np.vectorize(f)(x.astype(float))).max():.2g}"
        )
    shown("EXP", exponential(5))


def _horner(c: np.ndarray, t: np.ndarray) -> np.ndarray:
    out = np.full_like(t, np.float32(c[-1]))
    for k in c[-2::-1]:
        out = out * t + np.float32(k)
    return out


if __name__ == "__main__":
    main()
