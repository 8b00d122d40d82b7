"""Decide which of two models is faster, from times measured in interleaved rounds.

A difference counts only if it survives resampling of the rounds: the bootstrap interval (Efron
1979) of the ratio of medians, with rounds drawn in pairs because whatever slows the machine down
for longer than a round slows both models down.

Rounds of one session, in which both models stay loaded, share their memory placement and the
machine's other load: their spread says little about another session. So models are timed in several
sessions, and `predict_speedup` returns the interval that contains the ratio of another such
measurement with 95 %: Student's t for the logarithms of the sessions' ratios. Few sessions may
agree by luck, so their variance is combined with a prior variance, which is larger on a busy
machine (`docs/benchmarks/calibration.md` has the measurements).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from superopt.cost.machine_load import NO_LOAD, Load
from superopt.errors import UsageError

MIN_ROUNDS = 5  # fewer give no meaningful interval of a median
_RESAMPLES = 4000
# The prior standard deviation of the logarithm of a session's ratio, with the weight of
# PRIOR_DEGREES_OF_FREEDOM + 1 sessions: on a quiet machine, and the addition for each share of the
# time that the timed process waits for a core; see scripts/bench_calibration.py.
QUIET_LOG_DEVIATION = 0.012
WAITING_LOG_DEVIATION = 0.075
PRIOR_DEGREES_OF_FREEDOM = 4
# 97.5 % quantiles of Student's t distribution, from 4 degrees of freedom on.
_T_QUANTILES = (2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)


@dataclass(frozen=True, slots=True)
class SpeedupInterval:
    """The speedup of b over a: median(a) / median(b) and its confidence interval."""

    low: float
    mid: float
    high: float

    def __str__(self) -> str:
        return f"{self.mid:.3f}x [{self.low:.3f}, {self.high:.3f}]"


def compare_times(
    a: Sequence[float], b: Sequence[float], seed: int, confidence: float = 0.95
) -> SpeedupInterval:
    """Return the speedup of b over a; the k-th times of both are from the same round.

    Times are in any unit. With fewer than five rounds the interval is unbounded. Deterministic for
    given arguments. Raises UsageError for times that are not positive numbers, of different counts
    or none.
    """
    if len(a) != len(b) or not a:
        raise UsageError(
            "unpaired times cannot be compared",
            f"one model has {len(a)} rounds, the other {len(b)}",
            "time both in the same rounds",
        )
    times = np.array([a, b], dtype=np.float64)
    if not (np.isfinite(times).all() and (times > 0).all()):
        worst = next(t for t in (*a, *b) if not (math.isfinite(t) and t > 0))
        raise UsageError(
            f"{worst} is not a valid time", "times must be positive and finite", "measure again"
        )
    if not 0 < confidence < 1:
        raise UsageError(f"a confidence of {confidence}", "it must be between 0 and 1", "try 0.95")
    rounds = len(a)
    middle = np.median(times, axis=1)
    mid = float(middle[0] / middle[1])
    if rounds < MIN_ROUNDS:
        return SpeedupInterval(0.0, mid, math.inf)
    drawn = np.random.default_rng(seed).integers(0, rounds, (_RESAMPLES, rounds))
    medians = np.median(times[:, drawn], axis=2)
    tail = (1 - confidence) / 2
    low, high = np.quantile(medians[0] / medians[1], [tail, 1 - tail])
    return SpeedupInterval(min(float(low), mid), mid, max(float(high), mid))


@dataclass(frozen=True, slots=True)
class TimingSession:
    """Times of two models that were loaded together; the k-th ones are from the same round. load:
    of the machine meanwhile."""

    a: Sequence[float]
    b: Sequence[float]
    load: Load = NO_LOAD


def predict_speedup(sessions: Sequence[TimingSession], seed: int) -> SpeedupInterval:
    """Return the speedup of b over a, and the interval that contains another measurement of as many
    sessions with 95 %.

    The middle is the geometric mean of the sessions' ratios. The interval is never narrower than
    that of `compare_times` for all rounds together. Raises UsageError as `compare_times` does.
    """
    rounds = compare_times(
        [t for s in sessions for t in s.a], [t for s in sessions for t in s.b], seed
    )  # also rejects invalid measurements
    logs = np.array([math.log(float(np.median(s.a)) / float(np.median(s.b))) for s in sessions])
    waited = max(s.load.wait_share for s in sessions)
    prior = QUIET_LOG_DEVIATION + WAITING_LOG_DEVIATION * waited
    freedom = PRIOR_DEGREES_OF_FREEDOM + len(logs) - 1
    squares = PRIOR_DEGREES_OF_FREEDOM * prior**2 + float(((logs - logs.mean()) ** 2).sum())
    deviation = math.sqrt(squares / freedom * 2 / len(logs))  # of the difference of two means
    t = _T_QUANTILES[min(freedom - PRIOR_DEGREES_OF_FREEDOM, len(_T_QUANTILES) - 1)]
    mid = math.exp(float(logs.mean()))
    wide = math.exp(t * deviation)
    low, high = rounds.low / rounds.mid, rounds.high / rounds.mid
    return SpeedupInterval(mid * min(1 / wide, low), mid, mid * max(wide, high))


MIN_SPEEDUP = 1.005  # a smaller speedup is not worth another file, and depends on memory placement


def is_faster(ratio: SpeedupInterval) -> bool:
    """True if b is faster than a beyond noise, and enough to matter."""
    return ratio.low > 1 and ratio.mid >= MIN_SPEEDUP
