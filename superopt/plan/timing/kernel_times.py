"""The times of a target's kernels: predicted by a model of the machine, or measured on it."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from superopt.cost import tuning_records
from superopt.cost.roofline import BYTES_PER_US, FLOPS_PER_US
from superopt.cost.store import Target
from superopt.cost.tuning_records import TimeSummary
from superopt.ir import graph as ir_graph
from superopt.kernels.algorithms.problem import Problem
from superopt.kernels.algorithms.space import best_option, build_choice
from superopt.kernels.llvm.operation_count import count_bytes, count_operations
from superopt.kernels.loops.option import Option
from superopt.plan.graph.simplify import simplify_graph
from superopt.plan.program.call_operations import stage_operations
from superopt.plan.timing.cpu import build_runnable
from superopt.plan.timing.turns import ROUNDS, TimedKernel, TurnTimer, ratio_in_turns

COMPARED_ROUNDS = 15  # of kernels before and after a rewrite
CALL_US = 0.15  # of calling one more kernel on the CPU
UNKNOWN_RATIO = 1.3  # of a kernel's time to its roofline, where none was measured
RunCounts = Sequence[tuple[Problem, Option, int]]  # kernels, and how often each runs


@dataclass(frozen=True, slots=True)
class Estimate:
    """The predicted microseconds of an option of a problem; its algorithm and the logarithms of
    what its time depends on, which say which kernels are similar; and the share of the machine that
    it occupies."""

    us: float
    algorithm: str
    logs: tuple[float, ...]
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class PlannedKernel:
    """The microseconds of a kernel of a plan, the share of the machine that it occupies, and the
    kernels of the plan that it waits for."""

    us: float
    share: float
    needs: Collection[int]


class KernelTimes(Protocol):
    """Times of kernels. unknown_ratio: of a kernel's time to its estimate, where none was measured;
    call_us: of calling one more kernel, in addition to an estimate; has_streams: kernels that do
    not wait for each other may run concurrently; can_measure: False if kernels can only be
    predicted."""

    @property
    def can_measure(self) -> bool: ...

    unknown_ratio: float
    call_us: float
    has_streams: bool

    def simplify(self, graph: ir_graph.Graph, float_class: str) -> ir_graph.Graph:
        """Return a graph as it is simplified before it is planned."""

    def default_option(self, p: Problem) -> Option:
        """Return how a problem is solved that was not tuned."""

    def estimate(self, p: Problem, option: Option) -> Estimate:
        """Return what the model of the machine predicts."""

    def store_target(self) -> Target:
        """Return the target of measurements in the store."""

    def problem_numbers(self, p: Problem) -> tuple[int, ...]:
        """Return the numbers that describe a problem in the store."""

    def measure(self, p: Problem, option: Option) -> TimeSummary | None:
        """Return the measured seconds; None if the kernel does not run."""

    def compare(self, old: RunCounts, new: RunCounts) -> float | None:
        """Return the time of the new kernels over that of the old ones, measured in turns."""

    def total_us(self, kernels: Sequence[PlannedKernel]) -> float:
        """Return the microseconds of a plan."""


@dataclass(slots=True)
class CpuKernelTimes:
    """Kernels of this processor: estimated by their roofline (Williams et al., CACM 2009), and
    measured in turns with a fixed product. folder: of object files. applies_rules: as in
    `simplify_graph`."""

    timer: TurnTimer
    folder: Path | None = None
    unknown_ratio: float = UNKNOWN_RATIO
    call_us: float = CALL_US
    has_streams: bool = False
    can_measure: bool = True
    applies_rules: bool = True

    def simplify(self, graph: ir_graph.Graph, float_class: str) -> ir_graph.Graph:
        threads = self.timer.threads
        return simplify_graph(graph, float_class, threads, applies_rules=self.applies_rules)

    def default_option(self, p: Problem) -> Option:
        return best_option(p)

    def estimate(self, p: Problem, option: Option) -> Estimate:
        total = count_operations(p.tensor)
        own = sum(stage_operations(build_choice(p, option), total))
        us = max(own / FLOPS_PER_US, sum(count_bytes(p.tensor, p.constants)) / BYTES_PER_US)
        logs = tuple(math.log1p(n) for n in (own, *p.features()))
        return Estimate(max(us, 1e-3), option.algorithm, logs)

    def store_target(self) -> Target:
        return tuning_records.cpu_target(self.timer.threads)

    def problem_numbers(self, p: Problem) -> tuple[int, ...]:
        return p.features()

    def measure(self, p: Problem, option: Option) -> TimeSummary | None:
        timer = self.timer
        run = build_runnable(p, option, timer.machine, timer.threads, self.folder)
        seconds = timer.measure(run)
        return seconds, seconds, seconds, ROUNDS

    def compare(self, old: RunCounts, new: RunCounts) -> float | None:
        before, after = (
            [(self._prepare(p, option), n) for p, option, n in some] for some in (old, new)
        )
        return ratio_in_turns(before, after, COMPARED_ROUNDS)

    def _prepare(self, p: Problem, option: Option) -> TimedKernel:
        timer = self.timer
        return timer.prepare(build_runnable(p, option, timer.machine, timer.threads, self.folder))

    def total_us(self, kernels: Sequence[PlannedKernel]) -> float:
        return sum(k.us for k in kernels)
