"""Compare two results of one output against float64, with tolerances by dtype (DESIGN section
14)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from superopt.check.quantization_steps import NO_PROOF, Step, StepAllowance, step_difference
from superopt.te.expr.dtype import BF16, F16, F32, F64, DType

# rtol of the element, atol as a fraction of the output's rms
TOLERANCE: dict[DType, tuple[float, float]] = {
    F64: (1e-7, 1e-8),
    F32: (1e-4, 1e-5),
    F16: (1e-2, 1e-3),
    BF16: (3e-2, 1e-2),
}
MAX_ERROR_GROWTH = 4.0  # factor by which the error may exceed the original's own


@dataclass(frozen=True, slots=True)
class Comparison:
    """The absolute errors of one output on one set of inputs, and the original's; failure: empty if
    it passed.

    Errors are infinite only where they are unknown: the shapes differ. rms: of the output. steps:
    the largest difference in quantization steps; None if the output is not of a quantization;
    original_steps: the original's own, from float64.
    """

    max_error: float
    mean_error: float
    p99_error: float
    original_max: float
    rtol: float
    atol: float
    failure: str
    nonfinite_only: bool = False  # it failed only by a NaN or an infinity
    original_mean: float = 0.0
    original_p99: float = 0.0
    rms: float = 0.0
    steps: int | None = None
    original_steps: int = 0


def compare_output(
    dtype: DType | None,
    reference: np.ndarray,
    original: np.ndarray,
    candidate: np.ndarray,
    tolerance_scale: float = 1.0,
    step: Step | None = None,
    allowance: StepAllowance = NO_PROOF,
) -> Comparison:
    """Compare `candidate` with `reference` (float64), next to the original model's own result.

    Floats pass if every element is within rtol and atol * rms of the reference, or the largest
    error is at most MAX_ERROR_GROWTH times the original's; NaN and Inf must be where the original
    has them. All other dtypes must equal the original. Results of a quantization pass by steps
    (`step`: its step, see quantization_steps.py). tolerance_scale: a factor of these bounds;
    allowance: what is proved of the steps.
    """
    if candidate.shape != original.shape:
        return failed_comparison(f"shape {candidate.shape} instead of {original.shape}")
    if candidate.dtype != original.dtype:
        return failed_comparison(f"dtype {candidate.dtype} instead of {original.dtype}")
    if step is not None and candidate.size:
        by_steps = _compare_steps(
            step, reference, original, candidate, allowance.scale(tolerance_scale), allowance.steps
        )
        if by_steps is not None:
            return by_steps
    if dtype is None or not dtype.is_float:
        wrong = _differing_mask(original, candidate)
        if not wrong.any():
            return Comparison(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, "")
        first = tuple(int(i) for i in np.argwhere(wrong)[0]) if wrong.ndim else ()
        return failed_comparison(
            f"{int(wrong.sum())} of {wrong.size} elements differ, first at {first}:"
            f" {candidate[first]} instead of {original[first]}",
            original,
            candidate,
        )
    if candidate.size == 0:
        return Comparison(0.0, 0.0, 0.0, 0.0, *TOLERANCE.get(dtype, (0.1, 0.1)), "")
    doubles = original.astype(np.float64), candidate.astype(np.float64)
    return _compare_floats(dtype, reference, *doubles, tolerance_scale)


def _compare_steps(
    step: Step,
    reference: np.ndarray,
    original: np.ndarray,
    candidate: np.ndarray,
    tolerance_scale: float,
    proved_steps: int,
) -> Comparison | None:
    """Return the comparison of results of a quantization; None if some are not finite."""
    ref, own, c = (a.astype(np.float64) for a in (reference, original, candidate))
    if not all(np.isfinite(a).all() for a in (ref, own, c)):
        return None
    found = step_difference(step, ref, own, c, tolerance_scale, proved_steps)
    error, own_error = np.abs(c - ref), np.abs(own - ref)
    return Comparison(
        float(error.max()), *_mean_and_p99(error), float(own_error.max()), 0.0, 0.0, found.failure,
        False, *_mean_and_p99(own_error), root_mean_square(ref), found.steps, found.original_steps,
    )  # fmt: skip


def _differing_mask(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the mask of differing elements of two arrays of one shape; complex NaNs are equal."""
    wrong = np.asarray(a != b)
    if a.dtype.kind == "c":
        wrong &= ~(np.isnan(a) & np.isnan(b))
    return wrong


def count_differences(a: np.ndarray, b: np.ndarray) -> int:
    """Count the differing elements of two arrays; all of them if the shapes differ."""
    return int(_differing_mask(a, b).sum()) if a.shape == b.shape else max(a.size, b.size, 1)


def failed_comparison(
    why: str, original: np.ndarray | None = None, candidate: np.ndarray | None = None
) -> Comparison:
    """Return the comparison for a candidate that failed, with the errors of the elements that are
    finite in both results; infinite errors if the results are not given, or not numbers of one
    shape."""
    inf = float("inf")
    unknown = Comparison(inf, inf, inf, 0.0, 0.0, 0.0, why)
    if original is None or candidate is None or original.shape != candidate.shape:
        return unknown
    if any(a.dtype.kind in "OSUc" for a in (original, candidate)):
        return unknown
    a, b = original.astype(np.float64), candidate.astype(np.float64)
    both = np.isfinite(a) & np.isfinite(b)
    if not both.any():
        return unknown
    error = np.abs(b[both] - a[both])
    rms = root_mean_square(a[np.isfinite(a)])
    return Comparison(float(error.max()), *_mean_and_p99(error), 0.0, 0.0, 0.0, why, rms=rms)


def root_mean_square(x: np.ndarray) -> float:
    """Return the rms of finite numbers, without overflow of large squares."""
    most = float(np.abs(x).max()) if x.size else 0.0
    return most * float(np.sqrt(np.mean(np.square(x / most)))) if most else 0.0


# Of a correct rewrite in float64, which differs by rounding and by the float32 constants of rules:
# relative to the element, to the median element, and to the largest one.
EXACT_TOLERANCE = (1e-4, 1e-6, 1e-12)
# With constants folded and rounded to float32, and many layers behind them.
ROUNDED_TOLERANCE = (1e-3, 1e-4, 1e-9)


def compare_exact(
    reference: np.ndarray,
    candidate: np.ndarray,
    tolerance: tuple[float, float, float] = EXACT_TOLERANCE,
) -> str:
    """Return why two float64 results that should be equal differ, element by element, so that large
    elements do not hide small ones. Empty if they are equal; non-finite elements are skipped."""
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
        f"at {place} in float64 {c[at]:.6g} instead of {r[at]:.6g}, and {int(wrong.sum())} "
        f"of {r.size} differ"
    )


def _compare_floats(
    dtype: DType,
    reference: np.ndarray,
    original: np.ndarray,
    candidate: np.ndarray,
    tolerance_scale: float,
) -> Comparison:
    rtol, of_rms = (tolerance_scale * bound for bound in TOLERANCE.get(dtype, (0.1, 0.1)))
    special = ~np.isfinite(original)
    if special.any() or not np.isfinite(candidate).all():
        same = (np.isnan(candidate) == np.isnan(original)) & (
            ~np.isinf(original) & ~np.isinf(candidate)
            | (candidate == original)
            | np.isnan(original)
        )
        if not same.all():
            at = tuple(int(i) for i in np.argwhere(~same)[0])
            bad = failed_comparison(
                f"NaN or inf at {at}: {candidate[at]} instead of {original[at]}",
                original,
                candidate,
            )
            return replace(bad, nonfinite_only=True)
    plain = ~special & np.isfinite(reference)
    if not plain.any():
        return Comparison(0.0, 0.0, 0.0, 0.0, rtol, 0.0, "")
    ref = reference[plain]
    error = np.abs(candidate[plain] - ref)
    own_error = np.abs(original[plain] - ref)
    own = float(own_error.max())
    rms = root_mean_square(ref)
    atol = of_rms * rms
    worst = float(error.max())
    within = (
        bool((error <= atol + rtol * np.abs(ref)).all())
        or worst <= tolerance_scale * MAX_ERROR_GROWTH * own
    )
    failure = ""
    if not within:
        worst_at = int(np.argmax(error - rtol * np.abs(ref)))
        value, allowed = ref[worst_at], atol + rtol * abs(ref[worst_at])
        place = np.argwhere(plain)[worst_at].tolist()
        failure = (
            f"at {place} error {error[worst_at]:.3g} of {value:.3g}, allowed "
            f"{allowed:.3g}; the original's largest is {own:.3g}"
        )
    return Comparison(
        worst,
        *_mean_and_p99(error),
        own,
        rtol,
        atol,
        failure,
        False,
        *_mean_and_p99(own_error),
        rms,
    )


def _mean_and_p99(error: np.ndarray) -> tuple[float, float]:
    return float(error.mean()), float(np.quantile(error, 0.99))
