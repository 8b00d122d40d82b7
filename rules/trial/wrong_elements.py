"""Where the results of a rule's right side are not what its class allows."""

from __future__ import annotations

import numpy as np

# Float attributes and constants are rounded to float32, so that a law about 1/6 or sqrt(2) holds to
# 2^-24 at best. Correct rules have smaller errors, wrong ones larger errors.
RELATIVE_TOLERANCE = 1e-6
ABSOLUTE_TOLERANCE = 1e-12  # residue of a sum of integers that is zero


def wrong_elements(float_class: str, a: np.ndarray, b: np.ndarray, steps: int = 0) -> np.ndarray:
    """Return where `b` is not what a rule of this class, and within these steps, may make of `a`.

    E0: where it is not the same number, NaN or infinity. E1, E2: where it is off by more than
    rounding, or only one of the two is finite. E3: where a finite number becomes another number, or
    not finite: 1 = x / x from left to right divides by what may be zero.
    """
    if steps and a.dtype.kind in "iu":
        return np.asarray(np.abs(a.astype(np.int64) - b.astype(np.int64)) > steps)
    if a.dtype.kind != "f":
        return np.asarray(a != b)
    with np.errstate(all="ignore"):
        if float_class == "E0":
            return np.asarray(~((a == b) | (np.isnan(a) & np.isnan(b))))
        fine = np.isfinite(a) & np.isfinite(b)
        scale = np.sqrt(np.mean(np.square(a[fine]))) if fine.any() else 0.0
        off = np.abs(a - b) > RELATIVE_TOLERANCE * (scale + np.abs(a)) + ABSOLUTE_TOLERANCE
        return np.asarray((fine & off) | finiteness_changes(float_class, a, b))


def finiteness_changes(float_class: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return where `b` is not finite and `a` is, or, except for E3, the reverse. Large draws with
    exp are judged by that alone: their smallest results have few digits."""
    if a.dtype.kind != "f":
        return np.zeros(a.shape, np.bool_)
    lost, won = np.isfinite(a) & ~np.isfinite(b), ~np.isfinite(a) & np.isfinite(b)
    return np.asarray(lost | (won & (float_class != "E3")))
