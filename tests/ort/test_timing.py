"""Timing: small models, whole models in turns, and what is subtracted."""

import time
from collections.abc import Iterator

import numpy as np
import pytest
from onnx import TensorProto

from superopt import ort
from superopt.cost.speedup import compare_times, is_faster
from superopt.ort import Failure, Timing, Worker
from superopt.ort.tensors import Value
from superopt.ort.timing import FixedCost, interleave, measure, subtract_fixed_cost
from tests.support.onnx_io.tiny_models import FLOAT, INT64, matmul, matmuls, single

NEG = single("Neg", {"x": (FLOAT, [1])})


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker() as worker:
        yield worker


def timings(found: list[Timing | Failure]) -> list[Timing]:
    assert [f for f in found if isinstance(f, Failure)] == []
    return [f for f in found if isinstance(f, Timing)]


def test_small_models_in_order(worker: Worker) -> None:
    sizes = [4, 300, 64, 150]  # of 4 and 32 both are near what a run costs without its node
    found = timings(ort.time_single([matmul(n) for n in sizes], worker=worker))
    medians = [t.us_median for t in found]
    assert sorted(medians) == [medians[i] for i in (0, 2, 3, 1)]
    for timing in found:
        assert 0 < timing.us_low <= timing.us_median <= timing.us_high
        assert 5 <= timing.runs <= 150


def test_hundreds_take_seconds(worker: Worker) -> None:
    models = [matmul(n) for n in range(1, 101)]
    start = time.monotonic()
    timings(ort.time_single(models, worker=worker))
    assert time.monotonic() - start < 10  # 0.8 s on an idle machine


def test_the_cost_of_a_run_is_subtracted(worker: Worker) -> None:
    """A node that computes next to nothing is left with a fraction of what its model takes."""
    (raw,) = timings(ort.time_single([NEG], subtract=False, worker=worker))
    (net,) = timings(ort.time_single([NEG], worker=worker))
    assert 0 < net.us_median < raw.us_median
    (raw,) = timings(ort.time_single([matmul(300)], subtract=False, worker=worker))
    (net,) = timings(ort.time_single([matmul(300)], worker=worker))
    assert net.us_median > raw.us_median / 3


def test_subtracting_never_leaves_less_than_a_node_costs() -> None:
    fixed = FixedCost(4.0, 0.3, lambda: None)
    assert subtract_fixed_cost(fixed, Timing(200.0, 150.0, 300.0, 9)) == Timing(
        196.0, 146.0, 296.0, 9
    )
    assert subtract_fixed_cost(fixed, Timing(4.1, 3.0, 9.0, 9)) == Timing(0.3, 0.3, 5.0, 9)


def test_a_slow_moment_is_subtracted_as_such() -> None:
    """While a run of nothing takes 2 ms instead of 4 us, so does a part of every run."""
    fixed = FixedCost(4.0, 0.3, lambda: time.sleep(0.002))
    assert subtract_fixed_cost(fixed, Timing(50.0, 50.0, 5000.0, 9)).us_median == 0.3
    assert subtract_fixed_cost(fixed, Timing(50.0, 50.0, 9000.0, 9)).us_high < 7001


def test_inputs_are_drawn_or_given(worker: Worker) -> None:
    index: dict[str, Value] = {"i": np.array([2])}
    take = single("Gather", {"data": (FLOAT, [1, 4]), "i": (INT64, [1])})
    divide = single("Div", {"a": (INT64, [8]), "b": (INT64, [8])}, out=INT64)
    symbolic = single("Neg", {"x": (FLOAT, ["n"])})
    strings = single("Identity", {"x": (TensorProto.STRING, [2])}, out=TensorProto.STRING)
    found = ort.time_single(
        [take, take, divide, symbolic, symbolic, strings],
        [None, index, None, None, {"x": np.ones(3, np.float32)}, None],
        worker=worker,
    )
    kinds = [type(f).__name__ for f in found]
    assert kinds == ["Timing", "Failure", "Timing", "Failure", "Timing", "Timing"]
    assert isinstance(found[1], Failure)
    assert "indices element out of data bounds" in found[1].message
    assert isinstance(found[3], Failure)
    assert "a dim without a size" in found[3].message


def test_no_time_left(worker: Worker) -> None:
    done: list[int] = []
    found = ort.time_single(
        [NEG] * 5, stop=lambda: len(done) == 2, on_done=done.append, worker=worker
    )
    assert [isinstance(f, Timing) for f in found] == [True, True, False, False, False]
    assert done == [1, 2]
    assert found[2] == Failure("skipped", "not timed: no time was left")
    assert ort.time_single([NEG], seconds=0, worker=worker) == [found[2]]


def test_models_are_timed_interleaved(worker: Worker) -> None:
    feeds = {"a": np.full((128, 128), 0.01, np.float32), "b": np.full((128, 128), 0.01, np.float32)}
    models = [matmuls(128, 8), matmuls(128, 1), matmuls(128, 8)]
    times = ort.time_interleaved(models, feeds, seconds=1, rounds=11, seed=1, worker=worker)
    assert not isinstance(times, Failure)
    assert len(times) == 3
    assert len(times[0]) == len(times[1]) == len(times[2])
    assert 5 <= len(times[0]) <= 11
    ratio = compare_times(times[0], times[1], seed=0)
    assert is_faster(ratio)
    assert ratio.mid > 2
    assert not is_faster(compare_times(times[1], times[2], seed=0))


def test_threads_and_levels(worker: Worker) -> None:
    assert timings(ort.time_single([matmul(64)], threads=2, level="disable", worker=worker))
    found = ort.time_single([NEG], level="most", worker=worker)
    assert isinstance(found[0], Failure)
    assert "unknown graph optimization level 'most'" in found[0].message


def test_how_often_a_call_is_timed() -> None:
    calls: list[float] = []
    timing = measure(lambda: calls.append(0), target_us=1e9, max_runs=40)
    assert (timing.runs, len(calls)) == (40, 42)
    assert measure(lambda: time.sleep(0.002), target_us=1, max_runs=40).runs == 5
    assert measure(lambda: time.sleep(0.06), target_us=1, max_runs=40).runs == 2


def test_the_order_within_a_round_is_drawn_from_the_seed() -> None:
    def order(seed: int) -> str:
        called: list[str] = []
        runs = [lambda name=name: (called.append(name), time.sleep(0.001)) for name in "abc"]  # type: ignore[misc]
        times = interleave(runs, seconds=0.001, rounds=8, seed=seed)
        assert [len(t) for t in times] == [5, 5, 5]  # no time left, but fewer decide nothing
        return "".join(called[6:])  # without the two warm-ups of each

    assert order(1) == order(1) != order(2)
    rounds = [order(1)[i : i + 3] for i in range(0, 15, 3)]
    assert all(sorted(r) == ["a", "b", "c"] for r in rounds)
    assert len(set(rounds)) > 1
