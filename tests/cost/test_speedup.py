"""Is the difference real?"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from superopt.cost.machine_load import NO_LOAD, Load
from superopt.cost.speedup import (
    MIN_ROUNDS,
    QUIET_LOG_DEVIATION,
    WAITING_LOG_DEVIATION,
    SpeedupInterval,
    TimingSession,
    compare_times,
    is_faster,
    predict_speedup,
)
from superopt.errors import UsageError


def noisy(seed: int, rounds: int, scale: float = 1.0) -> list[float]:
    """Times with spikes now and then, as on a machine that does other things as well."""
    rng = np.random.default_rng(seed)
    spikes = (rng.random(rounds) < 0.1) * rng.random(rounds)
    times: list[float] = (scale * 100 * (1 + rng.exponential(0.02, rounds) + spikes)).tolist()
    return times


def test_the_ratio_is_how_many_times_faster_the_second_is() -> None:
    ratio = compare_times([200.0] * 9, [100.0] * 9, seed=0)
    assert ratio == SpeedupInterval(2.0, 2.0, 2.0)
    assert is_faster(ratio)
    assert not is_faster(compare_times([100.0] * 9, [200.0] * 9, seed=0))


def test_equal_times_are_not_faster() -> None:
    times = noisy(0, 25)
    assert compare_times(times, times, seed=0) == SpeedupInterval(1.0, 1.0, 1.0)
    assert not is_faster(compare_times(times, times, seed=0))


def test_a_drift_that_hits_both_is_no_difference() -> None:
    """Twice as slow from the middle on: each median is uncertain, their ratio is not."""
    drift = [1.0] * 10 + [2.0] * 9
    a = [100 * d for d in drift]
    b = [95 * d for d in drift]
    ratio = compare_times(a, b, seed=0)
    assert (ratio.low, ratio.high) == pytest.approx((100 / 95, 100 / 95))
    assert is_faster(ratio)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("rounds", [5, 10])
def test_noise_alone_is_rarely_taken_for_speed(rounds: int) -> None:
    """A 95 % interval lies above 1 by chance in 2.5 % of all cases; small samples get 5 %."""
    trials = 300
    wrong = sum(
        is_faster(compare_times(noisy(2 * s, rounds), noisy(2 * s + 1, rounds), seed=0))
        for s in range(trials)
    )
    assert wrong / trials <= 0.06


def test_a_real_difference_is_seen() -> None:
    trials = 60
    seen = sum(
        is_faster(compare_times(noisy(2 * s, 25, 1.05), noisy(2 * s + 1, 25), seed=0))
        for s in range(trials)
    )
    assert seen / trials >= 0.95


def test_the_same_seed_gives_the_same_interval() -> None:
    a, b = noisy(0, 15), noisy(1, 15)
    assert compare_times(a, b, seed=3) == compare_times(a, b, seed=3)
    assert compare_times(a, b, seed=3) != compare_times(a, b, seed=4)
    ratio = compare_times(a, b, seed=3)
    assert ratio.low <= ratio.mid <= ratio.high
    wide = compare_times(a, b, seed=3, confidence=0.999)
    assert wide.low < ratio.low
    assert wide.high > ratio.high


def test_few_rounds_decide_nothing() -> None:
    rounds = MIN_ROUNDS - 1
    ratio = compare_times([200.0] * rounds, [100.0] * rounds, seed=0)
    assert ratio == SpeedupInterval(0.0, 2.0, math.inf)
    assert not is_faster(ratio)


def test_as_text() -> None:
    assert str(SpeedupInterval(1.0312, 1.0456, 1.0601)) == "1.046x [1.031, 1.060]"


@pytest.mark.parametrize(
    ("a", "b", "complaint"),
    [
        ([1.0], [1.0, 2.0], "one model has 1 rounds, the other 2"),
        ([], [], "one model has 0 rounds, the other 0"),
        ([1.0, 0.0], [1.0, 1.0], "0.0 is not a valid time"),
        ([1.0, 1.0], [1.0, math.nan], "nan is not a valid time"),
        ([1.0, 1.0], [math.inf, 1.0], "inf is not a valid time"),
    ],
)
def test_what_is_no_measurement_is_refused(a: list[float], b: list[float], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        compare_times(a, b, seed=0)
    with pytest.raises(UsageError, match="confidence of 95"):
        compare_times([1.0], [1.0], seed=0, confidence=95)


# --- several sittings -----------------------------------------------------------------------------


def sittings(
    rng: np.random.Generator, count: int, ratio: float, deviation: float, load: Load = NO_LOAD
) -> list[TimingSession]:
    """Sittings of eight rounds; `deviation`: of the logarithm of the ratio between them."""
    made = []
    for _ in range(count):
        shift = math.exp(rng.normal(0, deviation))
        a = (100 * ratio * shift * np.exp(rng.normal(0, 0.01, 8))).tolist()
        b = (100 * np.exp(rng.normal(0, 0.01, 8))).tolist()
        made.append(TimingSession(a, b, load))
    return made


def middle(some: Sequence[TimingSession]) -> float:
    """The geometric mean of the sittings' ratios of medians."""
    return math.exp(np.mean([math.log(np.median(s.a) / np.median(s.b)) for s in some]))


def together(some: Sequence[TimingSession]) -> SpeedupInterval:
    """The interval of all rounds as if they were of one sitting."""
    return compare_times([t for s in some for t in s.a], [t for s in some for t in s.b], 0)


TRIALS = 100


@pytest.mark.ci
@pytest.mark.one_in(2)
@pytest.mark.parametrize(("count", "deviation"), [(2, 0.0), (2, 0.03), (4, 0.03), (5, 0.08)])
def test_another_measurement_lies_in_the_interval(count: int, deviation: float) -> None:
    """On a machine whose load is as it was found, 95 % do; the rounds alone promise too much."""
    rng = np.random.default_rng(count)
    load = Load(wait_share=max(deviation - QUIET_LOG_DEVIATION, 0.0) / WAITING_LOG_DEVIATION)
    hold = rounds = 0
    for _ in range(TRIALS):
        first = sittings(rng, count, 1.1, deviation, load)
        later = middle(sittings(rng, count, 1.1, deviation))
        claim, narrow = predict_speedup(first, 0), together(first)
        assert claim.mid == pytest.approx(middle(first))
        hold += claim.low <= later <= claim.high
        rounds += narrow.low <= later <= narrow.high
    assert hold >= 0.91 * TRIALS
    if deviation:
        assert rounds < 0.85 * TRIALS


def test_sittings_that_differ_widen_the_interval_where_no_load_is_seen() -> None:
    rng = np.random.default_rng(0)
    hold = 0
    for _ in range(TRIALS):
        claim = predict_speedup(sittings(rng, 5, 1.1, 0.03), 0)
        hold += claim.low <= middle(sittings(rng, 5, 1.1, 0.03)) <= claim.high
    assert hold >= 0.85 * TRIALS


def test_a_busy_machine_claims_less() -> None:
    quiet = sittings(np.random.default_rng(1), 4, 1.06, 0.002)
    busy = [replace(s, load=Load(wait_share=0.5, others_share=0.9)) for s in quiet]
    assert is_faster(predict_speedup(quiet, 0))
    assert not is_faster(predict_speedup(busy, 0))
    assert predict_speedup(quiet, 0).mid == predict_speedup(busy, 0).mid


def test_an_interval_is_never_narrower_than_that_of_the_rounds() -> None:
    rng = np.random.default_rng(2)
    a, b = (np.exp(rng.normal(0, 0.5, (5, 9))) for _ in "ab")
    some = [TimingSession(x.tolist(), y.tolist()) for x, y in zip(a, b, strict=True)]
    claim, rounds = predict_speedup(some, 0), together(some)
    assert claim.high / claim.low >= 0.999 * rounds.high / rounds.low
    assert claim.low <= claim.mid <= claim.high


def test_one_sitting_is_less_certain_than_four_that_agree() -> None:
    one = TimingSession([110.0] * 9, [100.0] * 9)
    wide, narrow = predict_speedup([one], 0), predict_speedup([one] * 4, 0)
    assert wide.mid == narrow.mid == pytest.approx(1.1)
    assert wide.low < narrow.low < 1.1 < narrow.high < wide.high
    assert narrow.high / narrow.low < 1.04


def test_sittings_that_are_no_measurement_are_refused() -> None:
    with pytest.raises(UsageError, match="not a valid time"):
        predict_speedup([TimingSession([1.0, 0.0], [1.0, 1.0])], 0)
    with pytest.raises(UsageError):
        predict_speedup([], 0)
