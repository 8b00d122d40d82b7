"""What the kernels of a graph's plan cost: measured where they were measured, else predicted.

A graph is simplified and planned as it is compiled, up to the problems of its kernels; no code is
generated. The time of a problem that was not measured is its roofline (Williams et al., CACM 2009),
times how far similar measured problems are above theirs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from superopt.cost import tuning_records
from superopt.cost.roofline import BYTES_PER_US, FLOPS_PER_US
from superopt.cost.store import Store
from superopt.ir import graph as ir_graph
from superopt.kernels.algorithms.digests import cost_digest, problem_digest
from superopt.kernels.algorithms.problem import Problem
from superopt.kernels.algorithms.space import best_option, build_choice
from superopt.kernels.llvm.operation_count import count_bytes, count_operations
from superopt.kernels.loops.option import Option
from superopt.plan.graph.partition import NO_KERNEL_ERRORS
from superopt.plan.graph.simplify import simplify_graph
from superopt.plan.passes import PASSES, initial_plan, run_passes
from superopt.plan.program.call_operations import stage_operations
from superopt.plan.program.plan import Settings
from superopt.plan.selection.kernel_problems import PlanProblems
from superopt.plan.timing.cpu import build_runnable
from superopt.plan.timing.turns import ROUNDS, TurnTimer, ratio_in_turns

COMPARED_ROUNDS = 15  # of kernels before and after a rewrite
CALL_US = 0.15  # of calling one more kernel
UNKNOWN_RATIO = 1.3  # of a problem's time to its roofline, where no problem was measured
KernelCounts = Mapping[str, int]  # how often a plan solves a problem, by its key
_PRICED_PASSES = PASSES[: next(n for n, x in enumerate(PASSES) if x.name == "select-kernels")]


@dataclass(frozen=True, slots=True)
class _Roofline:
    """The least microseconds of a problem; its algorithm and `Problem.features`, which say which
    problems are similar."""

    us: float
    algorithm: str
    logs: tuple[float, ...]


@dataclass(slots=True)
class PlanKernels:
    """The kernels of plans of graphs for this machine, and their times.

    sizes: of symbols. store: of earlier measurements. is_over: True once nothing more may be
    measured. folder: of object files. planned_count: graphs that were planned; measured_count,
    store_hits: problems that were measured, now and before.
    """

    settings: Settings
    timer: TurnTimer
    sizes: Mapping[str, int] = field(default_factory=dict)
    float_class: str = "E2"
    store: Store | None = None
    is_over: Callable[[], bool] = lambda: False
    folder: Path | None = None
    planned_count: int = 0
    measured_count: int = 0
    store_hits: int = 0
    estimated_count: int = 0
    problems: dict[str, Problem] = field(default_factory=dict)
    _us: dict[str, float] = field(default_factory=dict)
    _options: dict[str, Option] = field(default_factory=dict)
    _rooflines: dict[str, _Roofline] = field(default_factory=dict)
    _ratios: dict[str, list[tuple[tuple[float, ...], float]]] = field(default_factory=dict)
    _counts: dict[tuple[ir_graph.Value, ...], KernelCounts | None] = field(default_factory=dict)
    _compared: dict[object, float] = field(default_factory=dict)
    _stored: dict[str, dict[Option, float]] | None = None

    def kernels_of(self, graph: ir_graph.Graph) -> KernelCounts | None:
        """Return the problems of a graph's plan; None if an operator has no kernel."""
        if graph.outputs not in self._counts:
            self._counts[graph.outputs] = self._plan(graph)
        return self._counts[graph.outputs]

    def _plan(self, graph: ir_graph.Graph) -> KernelCounts | None:
        self.planned_count += 1
        try:
            simple = simplify_graph(graph, self.float_class, self.timer.threads)
            p = initial_plan(simple, self.sizes, self.settings)
            run_passes(p, _PRICED_PASSES)
            found = Counter[str]()
            for each in PlanProblems.of_plan(p):
                key = cost_digest(each.problem)
                self.problems.setdefault(key, each.problem)
                found[key] += 1
        except NO_KERNEL_ERRORS:
            return None
        return found

    def us(self, key: str) -> float:
        """Return the microseconds of a problem, measured or predicted."""
        found = self._us.get(key)
        if found is None:
            roofline = self._roofline(key)
            return roofline.us * self._ratio(roofline) + CALL_US
        return found

    def measure(self, keys: Iterable[str]) -> bool:
        """Measure problems that were not measured. Return False if the time was over before."""
        for key in keys:
            if key in self._us:
                continue
            us = self._stored_us(key)
            if us is None:
                if self.is_over():
                    return False
                us = self._measure(key)
            self._us[key] = us
            roofline = self._roofline(key)
            ratio = math.log(max(us / roofline.us, 1e-3))
            self._ratios.setdefault(roofline.algorithm, []).append((roofline.logs, ratio))
        return True

    def compare(self, old: KernelCounts, new: KernelCounts) -> None:
        """Time some kernels in turns with others."""
        if self.known_ratio(old, new) is None:
            before, after = (
                [(self.timer.prepare(self._runnable(k)), n) for k, n in some.items()]
                for some in (old, new)
            )
            self._compared[_pair(old, new)] = ratio_in_turns(before, after, COMPARED_ROUNDS)

    def known_ratio(self, old: KernelCounts, new: KernelCounts) -> float | None:
        """Return the time of `new` over that of `old` if they were timed in turns."""
        return self._compared.get(_pair(old, new))

    def _stored_us(self, key: str) -> float | None:
        if self.store is None:
            return None
        if self._stored is None:
            self._stored = {}
            target = tuning_records.cpu_target(self.timer.threads)
            for t in tuning_records.measured_options(self.store, target):
                self._stored.setdefault(t.problem, {})[t.option] = t.seconds
        seconds = self._stored.get(problem_digest(self.problems[key]), {}).get(self._option(key))
        self.store_hits += seconds is not None
        return None if seconds is None else 1e6 * seconds

    def _measure(self, key: str) -> float:
        seconds = self.timer.measure(self._runnable(key))
        self.measured_count += 1
        if self.store is not None:
            p, target = self.problems[key], tuning_records.cpu_target(self.timer.threads)
            row = {self._option(key): (seconds, seconds, seconds, ROUNDS)}
            tuning_records.store_times(self.store, target, problem_digest(p), p.features(), row)
        return 1e6 * seconds

    def _runnable(self, key: str) -> Callable[[], None]:
        problem, option = self.problems[key], self._option(key)
        return build_runnable(problem, option, self.timer.machine, self.timer.threads, self.folder)

    def _option(self, key: str) -> Option:
        found = self._options.get(key)
        if found is None:
            p = self.problems[key]
            tuned = self.settings.options.get(problem_digest(p))
            found = self._options[key] = best_option(p) if tuned is None else tuned
        return found

    def _roofline(self, key: str) -> _Roofline:
        found = self._rooflines.get(key)
        if found is None:
            p, option = self.problems[key], self._option(key)
            total = count_operations(p.tensor)
            own = sum(stage_operations(build_choice(p, option), total))
            us = max(own / FLOPS_PER_US, sum(count_bytes(p.tensor, p.constants)) / BYTES_PER_US)
            logs = tuple(math.log1p(n) for n in (own, *p.features()))
            found = _Roofline(max(us, 1e-3), option.algorithm, logs)
            self._rooflines[key] = found
        return found

    def _ratio(self, roofline: _Roofline) -> float:
        """Return the expected time over the roofline: the mean of the logarithms of measured
        problems of the algorithm, weighted by similarity (Nadaraya, 1964)."""
        weights = total = 0.0
        for logs, ratio in self._ratios.get(roofline.algorithm, ()):
            apart = sum((a - b) ** 2 for a, b in zip(logs, roofline.logs, strict=True))
            weight = math.exp(-apart / 2) + 1e-6
            weights += weight
            total += weight * ratio
        return math.exp(total / weights) if weights else UNKNOWN_RATIO


def _pair(old: KernelCounts, new: KernelCounts) -> object:
    return frozenset(old.items()), frozenset(new.items())
