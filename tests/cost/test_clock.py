"""Is the difference real?"""

import math

import numpy as np
import pytest

from superopt.cost.clock import LEAST_ROUNDS, Ratio, compare, faster
from superopt.errors import UsageError


def noisy(seed: int, rounds: int, scale: float = 1.0) -> list[float]:
    """Times with spikes now and then, as on a machine that does other things as well."""
    rng = np.random.default_rng(seed)
    spikes = (rng.random(rounds) < 0.1) * rng.random(rounds)
    times: list[float] = (scale * 100 * (1 + rng.exponential(0.02, rounds) + spikes)).tolist()
    return times


def test_the_ratio_is_how_many_times_faster_the_second_is() -> None:
    ratio = compare([200.0] * 9, [100.0] * 9, seed=0)
    assert ratio == Ratio(2.0, 2.0, 2.0)
    assert faster(ratio)
    assert not faster(compare([100.0] * 9, [200.0] * 9, seed=0))


def test_equal_times_are_not_faster() -> None:
    times = noisy(0, 25)
    assert compare(times, times, seed=0) == Ratio(1.0, 1.0, 1.0)
    assert not faster(compare(times, times, seed=0))


def test_a_drift_that_hits_both_is_no_difference() -> None:
    """Twice as slow from the middle on: each median is uncertain, their ratio is not."""
    drift = [1.0] * 10 + [2.0] * 9
    a = [100 * d for d in drift]
    b = [95 * d for d in drift]
    ratio = compare(a, b, seed=0)
    assert (ratio.low, ratio.high) == pytest.approx((100 / 95, 100 / 95))
    assert faster(ratio)


@pytest.mark.parametrize("rounds", [5, 10])
def test_noise_alone_is_rarely_taken_for_speed(rounds: int) -> None:
    """A 95 % interval lies above 1 by chance in 2.5 % of all cases; small samples get 5 %."""
    trials = 300
    wrong = sum(
        faster(compare(noisy(2 * s, rounds), noisy(2 * s + 1, rounds), seed=0))
        for s in range(trials)
    )
    assert wrong / trials <= 0.06


def test_a_real_difference_is_seen() -> None:
    trials = 60
    seen = sum(
        faster(compare(noisy(2 * s, 25, 1.05), noisy(2 * s + 1, 25), seed=0)) for s in range(trials)
    )
    assert seen / trials >= 0.95


def test_the_same_seed_gives_the_same_interval() -> None:
    a, b = noisy(0, 15), noisy(1, 15)
    assert compare(a, b, seed=3) == compare(a, b, seed=3)
    assert compare(a, b, seed=3) != compare(a, b, seed=4)
    ratio = compare(a, b, seed=3)
    assert ratio.low <= ratio.mid <= ratio.high
    wide = compare(a, b, seed=3, confidence=0.999)
    assert wide.low < ratio.low
    assert wide.high > ratio.high


def test_few_rounds_decide_nothing() -> None:
    rounds = LEAST_ROUNDS - 1
    ratio = compare([200.0] * rounds, [100.0] * rounds, seed=0)
    assert ratio == Ratio(0.0, 2.0, math.inf)
    assert not faster(ratio)


def test_as_text() -> None:
    assert str(Ratio(1.0312, 1.0456, 1.0601)) == "1.046x [1.031, 1.060]"


@pytest.mark.parametrize(
    ("a", "b", "complaint"),
    [
        ([1.0], [1.0, 2.0], "one model has 1 rounds, the other 2"),
        ([], [], "one model has 0 rounds, the other 0"),
        ([1.0, 0.0], [1.0, 1.0], "0.0 is no time"),
        ([1.0, 1.0], [1.0, math.nan], "nan is no time"),
        ([1.0, 1.0], [math.inf, 1.0], "inf is no time"),
    ],
)
def test_what_is_no_measurement_is_refused(a: list[float], b: list[float], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        compare(a, b, seed=0)
    with pytest.raises(UsageError, match="confidence of 95"):
        compare([1.0], [1.0], seed=0, confidence=95)
