"""Are two results of one output close enough? DESIGN section 14: against float64, by dtype."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from superopt.te.expr.dtype import BF16, F16, F32, F64, DType

# rtol of the element, atol as a part of the output's rms
TOLERANCE: dict[DType, tuple[float, float]] = {
    F64: (1e-7, 1e-8),
    F32: (1e-4, 1e-5),
    F16: (1e-2, 1e-3),
    BF16: (3e-2, 1e-2),
}
WORSE = 4.0  # how many times the original's own error is accepted


@dataclass(frozen=True, slots=True)
class Compared:
    """Absolute errors of one output on one set of inputs, and of the original's; why it failed
    (empty: it passed)."""

    max_error: float
    mean_error: float
    p99_error: float
    original_max: float
    rtol: float
    atol: float
    failure: str
    exceptional: bool = False  # did it fail by a NaN or an infinity alone?
    original_mean: float = 0.0
    original_p99: float = 0.0


def compare(
    dtype: DType | None,
    reference: np.ndarray,
    original: np.ndarray,
    candidate: np.ndarray,
    part: float = 1.0,
) -> Compared:
    """`candidate` against `reference` (float64), beside what the original model gives itself.

    Floats pass when every element is within rtol and atol * rms of the reference, or the largest
    error is at most 4 times the original's; NaN and inf must be where the original has them.
    Everything else must be what the original gives. part: of these bounds, how much is allowed.
    """
    if candidate.shape != original.shape:
        return failed(f"shape {candidate.shape} instead of {original.shape}")
    if candidate.dtype != original.dtype:
        return failed(f"dtype {candidate.dtype} instead of {original.dtype}")
    if dtype is None or not dtype.is_float:
        wrong = _unequal(original, candidate)
        if not wrong.any():
            return Compared(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, "")
        first = tuple(int(i) for i in np.argwhere(wrong)[0]) if wrong.ndim else ()
        return failed(
            f"{int(wrong.sum())} of {wrong.size} elements differ, first at {first}:"
            f" {candidate[first]} instead of {original[first]}"
        )
    if candidate.size == 0:
        return Compared(0.0, 0.0, 0.0, 0.0, *TOLERANCE.get(dtype, (0.1, 0.1)), "")
    doubles = original.astype(np.float64), candidate.astype(np.float64)
    return _floats(dtype, reference, *doubles, part)


def _unequal(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Where two arrays of one shape differ; complex NaNs are equal to each other."""
    wrong = np.asarray(a != b)
    if a.dtype.kind == "c":
        wrong &= ~(np.isnan(a) & np.isnan(b))
    return wrong


def differing(a: np.ndarray, b: np.ndarray) -> int:
    """How many elements of two arrays differ; all of them where the shapes do."""
    return int(_unequal(a, b).sum()) if a.shape == b.shape else max(a.size, b.size, 1)


def failed(why: str) -> Compared:
    """What stands for a comparison that could not be made because of the candidate."""
    inf = float("inf")
    return Compared(inf, inf, inf, 0.0, 0.0, 0.0, why)


def root_mean_square(x: np.ndarray) -> float:
    """Of finite numbers; squares of large ones do not overflow."""
    most = float(np.abs(x).max()) if x.size else 0.0
    return most * float(np.sqrt(np.mean(np.square(x / most)))) if most else 0.0


# In float64 a right rewrite is off by rounding alone, and by the float32 of a rule's constants: by
# part of the element, of a typical one (their median), and of the largest.
EXACT_TOLERANCE = (1e-4, 1e-6, 1e-12)
# Where constants were folded and rounded to float32, and many layers follow.
ROUNDED_TOLERANCE = (1e-3, 1e-4, 1e-9)


def compare_exact(
    reference: np.ndarray,
    candidate: np.ndarray,
    tolerance: tuple[float, float, float] = EXACT_TOLERANCE,
) -> str:
    """Why two float64 results of graphs that should be equal are not, element by element: large
    ones do not hide small ones. Empty where they are, and where one of them is not finite."""
    both = np.isfinite(reference) & np.isfinite(candidate)
    if not both.any():
        return ""
    r, c = reference[both], candidate[both]
    element, typical, largest = tolerance
    size = np.abs(r)
    allowed = element * size + (typical * np.median(size) + largest * size.max())
    wrong = np.abs(c - r) > allowed
    if not wrong.any():
        return ""
    at = int(np.argmax(np.abs(c - r) / np.maximum(allowed, np.finfo(np.float64).tiny)))
    place = np.argwhere(both)[at].tolist()
    return (
        f"at {place} in float64 {c[at]:.6g} instead of {r[at]:.6g}, and {int(wrong.sum())} of"
        f" {r.size} differ"
    )


def _floats(
    dtype: DType, reference: np.ndarray, original: np.ndarray, candidate: np.ndarray, part: float
) -> Compared:
    rtol, of_rms = (part * bound for bound in TOLERANCE.get(dtype, (0.1, 0.1)))
    special = ~np.isfinite(original)
    if special.any() or not np.isfinite(candidate).all():
        same = (np.isnan(candidate) == np.isnan(original)) & (
            ~np.isinf(original) & ~np.isinf(candidate)
            | (candidate == original)
            | np.isnan(original)
        )
        if not same.all():
            at = tuple(int(i) for i in np.argwhere(~same)[0])
            bad = failed(f"NaN or inf at {at}: {candidate[at]} instead of {original[at]}")
            return replace(bad, exceptional=True)
    plain = ~special & np.isfinite(reference)
    if not plain.any():
        return Compared(0.0, 0.0, 0.0, 0.0, rtol, 0.0, "")
    ref = reference[plain]
    error = np.abs(candidate[plain] - ref)
    own_error = np.abs(original[plain] - ref)
    own = float(own_error.max())
    atol = of_rms * root_mean_square(ref)
    worst = float(error.max())
    within = bool((error <= atol + rtol * np.abs(ref)).all()) or worst <= part * WORSE * own
    failure = ""
    if not within:
        worst_at = int(np.argmax(error - rtol * np.abs(ref)))
        value, allowed = ref[worst_at], atol + rtol * abs(ref[worst_at])
        place = np.argwhere(plain)[worst_at].tolist()
        failure = (
            f"at {place} error {error[worst_at]:.3g} of {value:.3g}, allowed {allowed:.3g};"
            f" the original's own largest is {own:.3g}"
        )
    return Compared(
        worst,
        *_mean_and_p99(error),
        own,
        rtol,
        atol,
        failure,
        False,
        *_mean_and_p99(own_error),
    )


def _mean_and_p99(error: np.ndarray) -> tuple[float, float]:
    return float(error.mean()), float(np.quantile(error, 0.99))
