"""When two results count as equal: tolerances by dtype, NaN and inf, everything else exactly."""

import ml_dtypes
import numpy as np
import pytest

from superopt.check.compare import (
    EXACT_TOLERANCE,
    ROUNDED_TOLERANCE,
    TOLERANCE,
    Comparison,
    compare_exact,
    compare_output,
    count_differences,
    failed_comparison,
)
from superopt.te.expr.dtype import BF16, BOOL, C64, F16, F32, F64, I64, STRING, DType, to_numpy

VALUES = np.array([1.0, -2.0, 3.0, -4.0])
RMS = float(np.sqrt(np.mean(np.square(VALUES))))
NAN, INF = float("nan"), float("inf")


def off_by(dtype: DType, error: float) -> str:
    """Why a candidate fails whose first element is wrong by `error` (a double: no rounding)."""
    candidate = VALUES + np.array([error, 0, 0, 0])
    return compare_output(dtype, VALUES, VALUES, candidate).failure


@pytest.mark.parametrize("dtype", [F64, F32, F16, BF16])
def test_the_tolerance_is_relative_to_the_element_and_the_rms(dtype: DType) -> None:
    rtol, part = TOLERANCE[dtype]
    allowed = rtol * 1.0 + part * RMS
    assert off_by(dtype, 0.99 * allowed) == ""
    assert off_by(dtype, -0.99 * allowed) == ""
    assert "allowed" in off_by(dtype, 1.01 * allowed)
    assert "allowed" in off_by(dtype, -1.01 * allowed)


def test_what_the_tolerances_are() -> None:
    assert {
        F64: (1e-7, 1e-8), F32: (1e-4, 1e-5), F16: (1e-2, 1e-3), BF16: (3e-2, 1e-2)
    } == TOLERANCE  # fmt: skip


def test_four_times_the_originals_own_error_is_accepted() -> None:
    own = 0.1
    original = VALUES + np.array([0, own, 0, 0])
    inside = VALUES + np.array([0, 0, 3.96 * own, 0])
    outside = VALUES + np.array([0, 0, 4.04 * own, 0])
    found = compare_output(F32, VALUES, original, inside)
    assert found.failure == ""
    assert found.original_max == pytest.approx(own)
    assert found.original_mean == pytest.approx(own / VALUES.size)
    assert 0.9 * own < found.original_p99 < own
    assert found.max_error == pytest.approx(3.96 * own)
    assert compare_output(F32, VALUES, original, outside).failure


@pytest.mark.parametrize("part", [1.0, 0.5, 0.1])
@pytest.mark.parametrize("own", [0.0, 0.1])
def test_a_part_of_the_bounds_may_be_all_that_is_allowed(part: float, own: float) -> None:
    rtol, of_rms = TOLERANCE[F32]
    bound = part * max(4 * own, rtol * 1.0 + of_rms * RMS)
    original = VALUES + np.array([own, 0, 0, 0])
    inside, outside = (VALUES + np.array([f * bound, 0, 0, 0]) for f in (0.99, 1.01))
    assert compare_output(F32, VALUES, original, inside, part).failure == ""
    assert "allowed" in compare_output(F32, VALUES, original, outside, part).failure


@pytest.mark.parametrize(
    ("original", "candidate", "good"),
    [
        ([NAN, 1, 2], [NAN, 1, 2], True),
        ([INF, 1, 2], [INF, 1, 2], True),
        ([-INF, NAN, INF], [-INF, NAN, INF], True),
        ([NAN, 1, 2], [0, 1, 2], False),
        ([0, 1, 2], [NAN, 1, 2], False),
        ([INF, 1, 2], [-INF, 1, 2], False),
        ([INF, 1, 2], [NAN, 1, 2], False),
        ([INF, 1, 2], [3e38, 1, 2], False),
        ([3e38, 1, 2], [INF, 1, 2], False),
    ],
)
def test_nan_and_inf_must_be_where_they_were(
    original: list[float], candidate: list[float], good: bool
) -> None:
    a, b = np.array(original, np.float32), np.array(candidate, np.float32)
    found = compare_output(F32, a.astype(np.float64), a, b)
    assert (found.failure == "") == good
    assert good or "NaN or inf at (0,)" in found.failure


def test_elements_beside_a_nan_are_still_compared() -> None:
    original = np.array([NAN, 1, 2], np.float32)
    wrong = np.array([NAN, 1, 2.5], np.float32)
    assert "error 0.5" in compare_output(F32, original.astype(np.float64), original, wrong).failure


@pytest.mark.parametrize(
    ("dtype", "original", "candidate"),
    [
        (I64, [1, 2, 3], [1, 2, 4]),
        (BOOL, [True, False], [True, True]),
        (STRING, ["a", "b"], ["a", "c"]),
        (C64, [1j, 2], [1j, 2.00001]),
    ],
)
def test_everything_else_is_exact(
    dtype: DType, original: list[object], candidate: list[object]
) -> None:
    a, b = (np.array(v).astype(to_numpy(dtype)) for v in (original, candidate))
    assert compare_output(dtype, a, a, a.copy()).failure == ""
    found = compare_output(dtype, a, a, b)
    assert found.failure.startswith(f"1 of {a.size} elements differ, first at (")


def test_shapes_and_dtypes_must_agree() -> None:
    a = np.ones((2, 3), np.float32)
    assert "shape (3, 2)" in compare_output(F32, a, a, a.T.copy()).failure
    assert "dtype float64" in compare_output(F32, a, a, a.astype(np.float64)).failure
    assert compare_output(F32, a[:0], a[:0], a[:0]).failure == ""


def test_what_is_said_of_results_without_errors() -> None:
    a = np.arange(3)
    assert compare_output(I64, a, a, a.copy()) == Comparison(0, 0, 0, 0, 0, 0, "")
    none = np.ones(0, np.float32)
    assert compare_output(F32, none, none, none) == Comparison(0, 0, 0, 0, 1e-4, 1e-5, "")
    nan = np.full(2, NAN, np.float32)
    assert compare_output(F32, nan, nan, nan) == Comparison(0, 0, 0, 0, 1e-4, 0, "")


def test_an_error_that_is_not_known_is_infinite() -> None:
    assert failed_comparison("why") == Comparison(INF, INF, INF, 0, 0, 0, "why")


def test_bfloat16_arrays_are_compared_as_numbers() -> None:
    a = np.array([1, 2, 3], ml_dtypes.bfloat16)
    assert compare_output(BF16, a.astype(np.float64), a, a.copy()).failure == ""
    assert compare_output(BF16, a.astype(np.float64), a, -a).failure


def test_a_scalar_has_a_place_too() -> None:
    a, b = np.array(3), np.array(4)
    assert (
        compare_output(I64, a, a, b).failure
        == "1 of 1 elements differ, first at (): 4 instead of 3"
    )


def test_differing_counts() -> None:
    a = np.array([1 + 0j, complex(NAN, 0)])
    assert count_differences(a, a.copy()) == 0
    assert count_differences(np.arange(5), np.array([0, 1, 9, 3, 9])) == 2
    assert count_differences(np.arange(5), np.arange(4)) == 5
    assert count_differences(np.arange(4), np.arange(5)) == 5
    assert count_differences(np.zeros((0, 2)), np.zeros((0, 3))) == 1
    assert count_differences(np.zeros(()), np.zeros((1,))) == 1


@pytest.mark.parametrize(
    ("reference", "candidate", "same"),
    [
        ([1.0, 2.0, 3.0], [1.0, 2.0, 3.0], True),
        ([1.0, 2.0, 3.0], [1.0, 2.0 + 1e-7, 3.0], True),  # a rule's constants are float32
        ([1.0, 2.0, 3.0], [1.0, 2.001, 3.0], False),
        ([1e7, 1.0, 1.0], [1e7, 2.0, 1.0], False),  # a large element hides nothing
        ([1e7, 1.0, 1.0], [1e7, 1.0 + 1e-6, 1.0], True),
        ([0.0, 1.0, 1.0], [1e-9, 1.0, 1.0], True),  # what cancels is off by a part of the others
        ([0.0, 1.0, 1.0], [1e-3, 1.0, 1.0], False),
        ([0.0, 0.0, 0.0], [0.0, 0.0, 0.0], True),
        ([1e200, 2e200, 3e200], [1e200, 2e200, 4e200], False),
        ([np.inf, 1.0], [np.nan, 1.0], True),  # that is the runtime's comparison's business
    ],
)
def test_in_float64_every_element_counts(
    reference: list[float], candidate: list[float], same: bool
) -> None:
    assert (compare_exact(np.array(reference), np.array(candidate)) == "") is same


@pytest.mark.parametrize(
    ("tolerance", "parts"),
    [(EXACT_TOLERANCE, (1e-4, 1e-6, 1e-12)), (ROUNDED_TOLERANCE, (1e-3, 1e-4, 1e-9))],
)
@pytest.mark.parametrize(
    "reference",
    [
        [1.0, 1.0, 1.0, 1.0],  # the element counts
        [0.0, 1.0, 1.0, 1.0],  # the median
        [0.0, 0.0, 0.0, 1e6],  # the largest
    ],
)
def test_how_far_off_float64_values_may_be(
    reference: list[float], tolerance: tuple[float, float, float], parts: tuple[float, ...]
) -> None:
    r = np.array(reference)
    size = abs(r[0]), np.median(r), r.max()
    allowed = sum(part * of for part, of in zip(parts, size, strict=True))
    inside, outside = (r + np.array([f * allowed, 0, 0, 0]) for f in (0.99, 1.01))
    assert compare_exact(r, inside, tolerance) == ""
    assert "1 of 4 differ" in compare_exact(r, outside, tolerance)
