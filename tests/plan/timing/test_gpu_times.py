"""Times of a GPU's kernels: predicted without one, measured by what stands in for one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from superopt.compilation.cuda.device import DOT_PRECISIONS
from superopt.compilation.cuda.plan_settings import gpu_settings
from superopt.compilation.frontend.allowed_transforms import ALL_TRANSFORMS
from superopt.cost.store import Store
from superopt.ir import graph as ir_graph
from superopt.kernels.algorithms.problem import Problem
from superopt.kernels.loops.option import Option
from superopt.plan.program.streams import CROSS_STREAM_NS, SAME_STREAM_OVERLAP_NS
from superopt.plan.timing import gpu_times
from superopt.plan.timing.gpu_times import GpuKernelTimes
from superopt.plan.timing.kernel_times import PlannedKernel
from superopt.plan.timing.plan_kernels import PlanKernels
from tests.support.ir.graphs import layers, op, value, weight


def planner(precision: str, streams: int = 4, **more: Any) -> PlanKernels:
    settings = gpu_settings(precision, ALL_TRANSFORMS, {}, streams=streams)
    times = GpuKernelTimes(DOT_PRECISIONS[precision], True, streams, more.pop("device", None))
    return PlanKernels(settings, times, **more)


def product(rows: int, columns: int, terms: int) -> ir_graph.Graph:
    x = value("x", rows, terms)
    return ir_graph.Graph((x,), (op("MatMul", x, weight(0, terms, columns)),))


def branches(count: int) -> ir_graph.Graph:
    """Chains of two small convolutions of one input, the second ones summed."""
    x = value("x", 1, 64, 14, 14)
    ends: list[ir_graph.Value] = []
    for n in range(count):
        first = op("Conv", x, weight(2 * n, 64, 64, 3, 3), pads=(1, 1, 1, 1))
        ends.append(op("Conv", op("Relu", first), weight(2 * n + 1, 64, 64, 1, 1)))
    return ir_graph.Graph((x,), tuple(ends))


SLOWER = [("fp16", "tf32"), ("tf32", "fp32")]


@pytest.mark.parametrize(("fast", "slow"), SLOWER)
def test_a_large_product_takes_longer_in_a_higher_precision(fast: str, slow: str) -> None:
    x = value("x", 4096, 2048)
    first = op("MatMul", x, weight(0, 2048, 2048))
    graph = ir_graph.Graph((x,), (op("MatMul", first, weight(1, 2048, 4096)),))
    assert planner(fast).plan_us(graph) < 0.8 * planner(slow).plan_us(graph)


def test_a_small_product_takes_a_launch_in_each_precision() -> None:
    times = [planner(p).plan_us(product(32, 32, 32)) for p in DOT_PRECISIONS]
    assert all(1.4 < us < 6 for us in times), times


US, SHARE = 10.0, 0.2
BESIDE = [[], [], [0], [1]]  # two chains of two kernels
IN_TURN = [[], [0], [1], [2]]
OVERLAP_US, CROSS_US = SAME_STREAM_OVERLAP_NS * 1e-3, CROSS_STREAM_NS * 1e-3


@pytest.mark.parametrize(
    ("needs", "streams", "share", "us"),
    [
        (IN_TURN, 4, SHARE, 4 * US - 3 * OVERLAP_US),
        (BESIDE, 1, SHARE, 4 * US - 3 * OVERLAP_US),
        (BESIDE, 4, SHARE, 2 * US - OVERLAP_US),
        (BESIDE, 4, 0.9, 4 * US - 3 * OVERLAP_US),  # each fills the GPU
        ([[], [], [0, 1]], 4, SHARE, 2 * US + CROSS_US),
    ],
)
def test_kernels_that_leave_the_gpu_idle_run_at_once(
    needs: Sequence[Sequence[int]], streams: int, share: float, us: float
) -> None:
    times = GpuKernelTimes("ieee", True, streams)
    kernels = [PlannedKernel(US, share, some) for some in needs]
    assert times.total_us(kernels) == pytest.approx(us)


def test_a_plan_knows_which_kernels_wait_for_each_other() -> None:
    graph = branches(3)
    one, several = planner("fp16", 1), planner("fp16", 4)
    assert one.kernels_of(graph) == several.kernels_of(graph)
    assert several.plan_us(graph) < 0.8 * one.plan_us(graph)
    chain = layers(3, 64)
    assert planner("fp16", 4).plan_us(chain) == planner("fp16", 1).plan_us(chain)


class FakeGpu:
    """Stands in for the measurement of options. seconds: of each; None where it does not run."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds, self.asked = seconds, list[Option]()

    def __call__(
        self, p: Problem, options: Sequence[Option], dot_precision: str, timers: dict[Option, Any],
        failed: list[str],
    ) -> Mapping[Option, float]:  # fmt: skip
        self.asked += options
        if self.seconds is None:
            return {}
        timers |= {o: (self.seconds, lambda: p.features()[0] * 1e-3) for o in options}
        return dict.fromkeys(options, self.seconds)


@pytest.fixture
def fake_gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    made = FakeGpu(3e-4)
    monkeypatch.setattr(gpu_times, "measure_options", made)
    return made


def test_what_was_measured_counts_and_is_stored(fake_gpu: FakeGpu, tmp_path: Path) -> None:
    graph = product(64, 64, 64)
    how: dict[str, Any] = {"device": "a GPU"}
    with Store.open(tmp_path / "store.db") as store:
        for measured, stored in ((1, 0), (0, 1)):
            plans = planner("fp16", store=store, **how)
            (key,) = plans.kernels_of(graph) or ()
            assert plans.us(key) < 10
            assert plans.measure([key])
            assert plans.us(key) == plans.plan_us(graph) == pytest.approx(300)
            assert (plans.measured_count, plans.store_hits) == (measured, stored)
        # another precision's kernels are other problems
        plans = planner("tf32", store=store, **how)
        assert plans.measure(plans.kernels_of(graph) or ())
        assert plans.store_hits == 0
    assert len(fake_gpu.asked) == 2


def test_measured_kernels_correct_the_prediction_of_similar_ones(fake_gpu: FakeGpu) -> None:
    plans = planner("fp16", device="a GPU")
    (key,) = plans.kernels_of(product(64, 64, 64)) or ()
    (similar,) = plans.kernels_of(product(64, 64, 80)) or ()
    before = plans.us(similar)
    plans.measure([key])
    assert plans.us(similar) > 20 * before


def test_a_kernel_that_does_not_run_keeps_its_prediction(fake_gpu: FakeGpu) -> None:
    fake_gpu.seconds = None
    plans = planner("fp16", device="a GPU")
    (key,) = plans.kernels_of(product(64, 64, 64)) or ()
    before = plans.us(key)
    assert plans.measure([key])
    assert plans.measure([key])
    assert plans.us(key) == before
    assert len(fake_gpu.asked) == 1  # not again
    plans.compare({key: 1}, {key: 2})
    assert plans.known_ratio({key: 1}, {key: 2}) is None


def test_rewrites_are_compared_in_turns(fake_gpu: FakeGpu) -> None:
    plans = planner("fp16", device="a GPU")
    (small,) = plans.kernels_of(product(64, 64, 64)) or ()
    (large,) = plans.kernels_of(product(64, 96, 64)) or ()
    assert plans.known_ratio({small: 2}, {large: 1}) is None
    plans.compare({small: 2}, {large: 1})
    assert plans.known_ratio({small: 2}, {large: 1}) == pytest.approx(96 / 128)


def test_without_a_gpu_nothing_is_measured(fake_gpu: FakeGpu) -> None:
    plans = planner("fp16")
    counts = plans.kernels_of(product(64, 64, 64)) or {}
    assert plans.measure(counts)  # what is predicted is all that there is
    plans.compare(counts, counts)
    assert plans.known_ratio(counts, counts) is None
    assert not fake_gpu.asked
