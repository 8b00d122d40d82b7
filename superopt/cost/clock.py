"""Which of two models is faster, from times measured in turns.

A difference counts only if resampling the rounds does not make it vanish: the bootstrap interval
(Efron 1979) of the ratio of medians, rounds drawn in pairs because what slows the machine down
for longer than a round slows both models down.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from superopt.errors import UsageError

LEAST_ROUNDS = 5  # below this no interval of a median is worth its name
_RESAMPLES = 4000


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times faster b is than a: median(a) / median(b) and its confidence interval."""

    low: float
    mid: float
    high: float

    def __str__(self) -> str:
        return f"{self.mid:.3f}x [{self.low:.3f}, {self.high:.3f}]"


def compare(a: Sequence[float], b: Sequence[float], seed: int, confidence: float = 0.95) -> Ratio:
    """How many times faster b is than a; the k-th times of both are from the same round.

    Any unit of time.  With fewer than five rounds the interval is everything.  The same for the
    same arguments.  Raises UsageError for times that are not positive numbers, of different
    counts or none.
    """
    if len(a) != len(b) or not a:
        raise UsageError(
            "times that are not paired cannot be compared",
            f"one model has {len(a)} rounds, the other {len(b)}",
            "time both in the same rounds",
        )
    times = np.array([a, b], dtype=np.float64)
    if not (np.isfinite(times).all() and (times > 0).all()):
        worst = next(t for t in (*a, *b) if not (math.isfinite(t) and t > 0))
        raise UsageError(f"{worst} is no time", "times are positive and finite", "measure again")
    if not 0 < confidence < 1:
        raise UsageError(f"a confidence of {confidence}", "it lies between 0 and 1", "try 0.95")
    rounds = len(a)
    middle = np.median(times, axis=1)
    mid = float(middle[0] / middle[1])
    if rounds < LEAST_ROUNDS:
        return Ratio(0.0, mid, math.inf)
    drawn = np.random.default_rng(seed).integers(0, rounds, (_RESAMPLES, rounds))
    medians = np.median(times[:, drawn], axis=2)
    tail = (1 - confidence) / 2
    low, high = np.quantile(medians[0] / medians[1], [tail, 1 - tail])
    return Ratio(min(float(low), mid), mid, max(float(high), mid))


LEAST_GAIN = 1.005  # a smaller one is not worth another file, and depends on where memory lies


def faster(ratio: Ratio) -> bool:
    """Whether b is faster than a beyond noise, and worth it."""
    return ratio.low > 1 and ratio.mid >= LEAST_GAIN
