"""The times of a GPU's kernels: by the model of an H100, and measured where there is a GPU.

The time of a plan is that of its kernels on their streams (program/streams.py). Predicted so, the
times of eight models at batch 1 and 16 in fp16 and tf32 have a rank correlation of 0.99 with those
measured on an H100 (docs/explanation/search.md).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from superopt.cost import gpu_features, tuning_records
from superopt.cost.store import Target
from superopt.cost.tuning_records import TimeSummary
from superopt.ir import graph as ir_graph
from superopt.kernels.algorithms.gpu.blocks import LAUNCH_NS
from superopt.kernels.algorithms.gpu.vendor_gemm import VENDOR
from superopt.kernels.algorithms.problem import Problem
from superopt.kernels.algorithms.space import best_option
from superopt.kernels.llvm.operation_count import count_operations
from superopt.kernels.loops.option import Option
from superopt.plan.graph.simplify import simplify_graph
from superopt.plan.program.streams import SAME_STREAM_OVERLAP_NS, Cost, makespan_ns
from superopt.plan.timing.gpu import TimedOption, measure_options
from superopt.plan.timing.kernel_times import Estimate, PlannedKernel, RunCounts

COMPARED_ROUNDS = 15  # of kernels before and after a rewrite
# Operations per ns: of tensor cores, by whether operands have 16 bits, as in
# docs/benchmarks/bench_gpu.md; without them, 128 lanes of each multiprocessor at 1.98 GHz.
TENSOR_CORE_OPERATIONS_PER_NS = {True: 800_000.0, False: 400_000.0}
LANE_OPERATIONS_PER_NS = 67_000.0
TENSOR_CORE_ALGORITHMS = frozenset((*gpu_features.STEP_MODELLED_ALGORITHMS, VENDOR))


@dataclass(slots=True)
class GpuKernelTimes:
    """Kernels of a GPU. dot_precision: of fp32 products, as Triton names it. device: the name of
    the GPU on which they are measured; None to predict them only."""

    dot_precision: str
    vendor: bool
    streams: int
    device: str | None = None
    unknown_ratio: float = 1.0
    call_us: float = -SAME_STREAM_OVERLAP_NS * 1e-3
    has_streams: bool = True
    applies_rules: bool = True

    @property
    def can_measure(self) -> bool:
        return self.device is not None

    def simplify(self, graph: ir_graph.Graph, float_class: str) -> ir_graph.Graph:
        return simplify_graph(graph, float_class, 1, False, applies_rules=self.applies_rules)

    def default_option(self, p: Problem) -> Option:
        return best_option(p, "cuda", self.vendor)

    def estimate(self, p: Problem, option: Option) -> Estimate:
        numbers = gpu_features.problem_numbers(p)
        found = gpu_features.predict_time(numbers, option)
        *_, item_bytes, _, _ = numbers
        is_short, rate = p.stores_half or item_bytes == 2, LANE_OPERATIONS_PER_NS
        if option.algorithm in TENSOR_CORE_ALGORITHMS and (
            is_short or self.dot_precision != "ieee"
        ):
            rate = TENSOR_CORE_OPERATIONS_PER_NS[is_short]
        ns = max(found.total_ns, LAUNCH_NS + count_operations(p.tensor) / rate)
        logs = tuple(math.log1p(n) for n in numbers)
        return Estimate(ns * 1e-3, option.algorithm, logs, found.gpu_share)

    def store_target(self) -> Target:
        assert self.device is not None
        return tuning_records.gpu_target(self.device, self.dot_precision)

    def problem_numbers(self, p: Problem) -> tuple[int, ...]:
        return gpu_features.problem_numbers(p)

    def measure(self, p: Problem, option: Option) -> TimeSummary | None:
        found = measure_options(p, [option], self.dot_precision, {}, []).get(option)
        return None if found is None else (found, found, found, 1)

    def compare(self, old: RunCounts, new: RunCounts) -> float | None:
        before, after = (self._clocks(some) for some in (old, new))
        if before is None or after is None:
            return None
        ratios = []
        for _ in range(COMPARED_ROUNDS):
            was, now = (sum(n * tick() for tick, n in some) for some in (before, after))
            ratios.append(now / was)
        return statistics.median(ratios)

    def _clocks(self, kernels: RunCounts) -> list[tuple[Callable[[], float], int]] | None:
        """Return functions that time each kernel, with its runs; None if one does not run."""
        out = []
        for p, option, n in kernels:
            timers: dict[Option, TimedOption] = {}
            measure_options(p, [option], self.dot_precision, timers, [])
            if option not in timers:
                return None
            out.append((timers[option][1], n))
        return out

    def total_us(self, kernels: Sequence[PlannedKernel]) -> float:
        costs = [Cost(k.us * 1e3, k.share) for k in kernels]
        return makespan_ns([k.needs for k in kernels], costs, self.streams) * 1e-3
