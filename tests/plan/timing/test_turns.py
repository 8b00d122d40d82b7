"""Timing beside other processes: in turns with a fixed product."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from superopt.cost import tuning_records
from superopt.cost.store import Store
from superopt.kernels.runtime.cpu import host
from superopt.plan.timing.turns import TurnTimer, ratio_in_turns


def spin(seconds: float) -> None:
    """Use the processor for this time of the thread."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def timer() -> TurnTimer:
    return TurnTimer.open(host(), 1, Store.in_memory())


def test_waiting_does_not_count() -> None:
    """Of a run that waits for the processor, the time on the processor counts."""

    def wait_and_spin() -> None:
        time.sleep(0.02)
        spin(0.002)

    made = timer()
    kernel = made.prepare(wait_and_spin)
    assert kernel.seconds() < 0.01
    assert made.measure(wait_and_spin) == pytest.approx(0.002, rel=0.8)


def test_a_short_kernel_runs_several_times_in_a_turn() -> None:
    calls: list[None] = []
    kernel = timer().prepare(lambda: calls.append(None))
    assert kernel.repeats > 5
    before = len(calls)
    kernel.seconds()
    assert len(calls) == before + kernel.repeats


def test_the_ratio_of_two_sides() -> None:
    made = timer()
    slow, fast = made.prepare(lambda: spin(0.002)), made.prepare(lambda: spin(0.001))
    assert ratio_in_turns([(slow, 1)], [(fast, 1)], 9) == pytest.approx(0.5, rel=0.2)
    assert ratio_in_turns([(slow, 1)], [(fast, 2)], 9) == pytest.approx(1.0, rel=0.2)


def test_times_of_another_day_are_relative_to_the_same_product(tmp_path: Path) -> None:
    target = tuning_records.cpu_target(1)
    with Store.open(tmp_path) as store:
        first = TurnTimer.open(host(), 1, store)
        kept = tuning_records.reference_seconds(store, target)
        assert kept == pytest.approx(first.reference_seconds)
    with Store.open(tmp_path) as store:
        again = TurnTimer.open(host(), 1, store)
        assert again.reference is None  # nothing was timed
        assert again.reference_seconds == pytest.approx(first.reference_seconds)
        tuning_records.store_reference_seconds(store, target, 2 * first.reference_seconds)
        twice = TurnTimer.open(host(), 1, store)
    one, two = (t.measure(lambda: spin(0.001)) for t in (again, twice))
    assert two / one == pytest.approx(2, rel=0.4)
