"""How far rounding near the middle of two quantization steps leads, in float outputs.

Where no quantization is right before an output, its error is not counted in steps. Another order of
float32 sums turns some quantized values into their neighbours; the original evaluated in float64
with quotients that are off by as much shows what this does to outputs. Exact ties stay: every
implementation rounds them to even.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from superopt.check.compare import TOLERANCE, Comparison, compare_output, root_mean_square
from superopt.check.quantization_steps import MAX_COUNT_GROWTH, NEAR_TIE_FRACTION
from superopt.te.eval.domain import Reals
from superopt.te.expr.dtype import F64, DType

SAMPLES = 4
RELATIVE_OFFSET = 2.0**-21  # of a quotient and of their rms: some units in float32's last place


@dataclass(frozen=True, slots=True)
class NearTies(Reals):
    """Float64, with operands of `round` off by what float32 sums may differ."""

    float_dtype: DType | None = F64
    seed: int = 0

    def apply(
        self, fn: str, args: Sequence[np.ndarray], kinds: Sequence[DType], dtype: DType
    ) -> np.ndarray:
        if fn != "round" or not kinds[0].is_float:
            return Reals.apply(self, fn, args, kinds, dtype)
        (x,) = args
        rms = root_mean_square(x[np.isfinite(x)])
        offset = np.random.default_rng((self.seed, x.size)).uniform(-1, 1, x.shape)
        moved = x + RELATIVE_OFFSET * offset * (np.abs(x) + rms)
        tied = np.abs(x - np.floor(x) - 0.5) == 0
        return Reals.apply(self, fn, [np.where(tied, x, moved)], kinds, dtype)


def worst_near_ties(
    evaluate: Callable[[NearTies], Sequence[np.ndarray | None]],
    reference: Sequence[np.ndarray | None],
) -> Iterator[np.ndarray | None]:
    """Yield, for each output, the sample that is farthest from the reference in float64; None for
    outputs without a value."""
    samples = [evaluate(NearTies(seed=seed)) for seed in range(SAMPLES)]
    for k, r in enumerate(reference):
        found = [a for s in samples if (a := s[k]) is not None]
        if r is None or not found or any(a.shape != r.shape for a in found):
            yield None
            continue
        yield max(found, key=lambda a, r=r: _distance(a, r))  # type: ignore[misc]


def compare_near_ties(
    dtype: DType,
    reference: np.ndarray,
    near: np.ndarray,
    candidate: np.ndarray,
    tolerance_scale: float = 1.0,
) -> Comparison | None:
    """Return the comparison of a candidate whose errors are like those of `near`, in size and in
    number; None if they are larger or more."""
    found = compare_output(dtype, reference, near, candidate, tolerance_scale)
    if found.failure:
        return None
    counts = [_count_far(dtype, reference, a) for a in (candidate, near)]
    allowed = NEAR_TIE_FRACTION * reference.size + MAX_COUNT_GROWTH * counts[1]
    return found if counts[0] <= allowed else None


def _count_far(dtype: DType, reference: np.ndarray, a: np.ndarray) -> int:
    """Return how many elements are not within the tolerance of a float type."""
    rtol, of_rms = TOLERANCE.get(dtype, (0.1, 0.1))
    rms = root_mean_square(reference[np.isfinite(reference)])
    off = np.abs(a.astype(np.float64) - reference)
    return int(np.count_nonzero(off > rtol * np.abs(reference) + of_rms * rms))


def _distance(a: np.ndarray, b: np.ndarray) -> float:
    off = np.abs(a.astype(np.float64) - b.astype(np.float64))
    return float(np.nanmax(np.where(np.isfinite(off), off, 0.0), initial=0.0))
