"""What the kernels of a graph's plan cost: measured where they were measured, else predicted.

A graph is simplified and planned as it is compiled, up to the problems of its kernels; no code is
generated. The time of a problem that was not measured is what a model of the machine predicts,
times how far similar measured problems are above that.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from superopt.cost import tuning_records
from superopt.cost.store import Store
from superopt.ir import graph as ir_graph
from superopt.kernels.algorithms.digests import cost_digest, problem_digest
from superopt.kernels.algorithms.problem import Problem
from superopt.kernels.loops.option import Option
from superopt.plan.graph.partition import NO_KERNEL_ERRORS
from superopt.plan.graph.simplify import ALWAYS_APPLIED_RULES
from superopt.plan.passes import PASSES, initial_plan, run_passes
from superopt.plan.program.plan import Settings
from superopt.plan.program.streams import dependencies
from superopt.plan.rewrites.fusion.buffer_views import BufferView
from superopt.plan.selection.kernel_problems import KernelProblem, PlanProblems
from superopt.plan.timing.kernel_times import Estimate, KernelTimes, PlannedKernel

KernelCounts = Mapping[str, int]  # how often a plan solves a problem, by its key
FREE_RULES = frozenset(name for names in ALWAYS_APPLIED_RULES.values() for name in names)
_PRICED_PASSES = PASSES[: next(n for n, x in enumerate(PASSES) if x.name == "select-kernels")]


@dataclass(frozen=True, slots=True)
class _GraphKernels:
    """The kernels of a graph's plan: how often it solves each problem; the problems in order; and
    the kernels that each of these waits for, where kernels may run concurrently."""

    counts: KernelCounts
    keys: tuple[str, ...]
    needs: tuple[Collection[int], ...]


@dataclass(slots=True)
class PlanKernels:
    """The kernels of plans of graphs for a target, and their times.

    sizes: of symbols. store: of earlier measurements. is_over: True once nothing more may be
    measured. planned_count: graphs that were planned; measured_count, store_hits: problems that
    were measured, now and before.
    """

    settings: Settings
    times: KernelTimes
    sizes: Mapping[str, int] = field(default_factory=dict)
    float_class: str = "E2"
    store: Store | None = None
    is_over: Callable[[], bool] = lambda: False
    free_rules: Collection[str] = FREE_RULES
    planned_count: int = 0
    measured_count: int = 0
    store_hits: int = 0
    estimated_count: int = 0
    problems: dict[str, Problem] = field(default_factory=dict)
    _us: dict[str, float] = field(default_factory=dict)
    _failed: set[str] = field(default_factory=set)
    _options: dict[str, Option] = field(default_factory=dict)
    _estimates: dict[str, Estimate] = field(default_factory=dict)
    _ratios: dict[str, list[tuple[tuple[float, ...], float]]] = field(default_factory=dict)
    _planned: dict[tuple[ir_graph.Value, ...], _GraphKernels | None] = field(default_factory=dict)
    _compared: dict[object, float | None] = field(default_factory=dict)
    _stored: dict[str, dict[Option, float]] | None = None

    @property
    def has_streams(self) -> bool:
        return self.times.has_streams

    def kernels_of(self, graph: ir_graph.Graph) -> KernelCounts | None:
        """Return the problems of a graph's plan; None if an operator has no kernel."""
        found = self._kernels_of(graph)
        return None if found is None else found.counts

    def plan_us(self, graph: ir_graph.Graph) -> float:
        """Return the microseconds of a run of a graph's plan; 0 if it has none."""
        found = self._kernels_of(graph)
        if found is None:
            return 0.0
        needs = found.needs or [()] * len(found.keys)
        return self.times.total_us(
            [
                PlannedKernel(self._kernel_us(key), self._estimate(key).share, some)
                for key, some in zip(found.keys, needs, strict=True)
            ]
        )

    def _kernels_of(self, graph: ir_graph.Graph) -> _GraphKernels | None:
        if graph.outputs not in self._planned:
            self._planned[graph.outputs] = self._plan(graph)
        return self._planned[graph.outputs]

    def _plan(self, graph: ir_graph.Graph) -> _GraphKernels | None:
        self.planned_count += 1
        try:
            simple = self.times.simplify(graph, self.float_class)
            p = initial_plan(simple, self.sizes, self.settings)
            run_passes(p, _PRICED_PASSES)
            problems = PlanProblems.of_plan(p)
            found = list(problems)
            keys = tuple(cost_digest(each.problem) for each in found)
        except NO_KERNEL_ERRORS:
            return None
        for key, each in zip(keys, found, strict=True):
            self.problems.setdefault(key, each.problem)
        needs = _dependencies(problems, found) if self.times.has_streams else ()
        return _GraphKernels(Counter(keys), keys, tuple(needs))

    def us(self, key: str) -> float:
        """Return the microseconds that a kernel adds to a plan, measured or predicted."""
        us = self._kernel_us(key)
        return us if key in self._us else us + self.times.call_us

    def _kernel_us(self, key: str) -> float:
        """Return the microseconds of a kernel alone."""
        found = self._us.get(key)
        if found is None:
            estimate = self._estimate(key)
            return estimate.us * self._ratio(estimate)
        return found

    def measure(self, keys: Iterable[str]) -> bool:
        """Measure problems that were not measured, if that is possible here. Return False if the
        time was over before."""
        for key in keys if self.times.can_measure else ():
            if key in self._us or key in self._failed:
                continue
            us = self._stored_us(key)
            if us is None:
                if self.is_over():
                    return False
                us = self._measure(key)
            if us is None:
                self._failed.add(key)
                continue
            self._us[key] = us
            estimate = self._estimate(key)
            ratio = math.log(max(us / estimate.us, 1e-3))
            self._ratios.setdefault(estimate.algorithm, []).append((estimate.logs, ratio))
        return True

    def compare(self, old: KernelCounts, new: KernelCounts) -> None:
        """Time some kernels in turns with others."""
        pair = _pair(old, new)
        if not self.times.can_measure or pair in self._compared:
            return
        back = self._compared.get(_pair(new, old))  # else both directions could gain by noise
        if back is not None:
            self._compared[pair] = 1 / back
        else:
            before, after = (
                [(self.problems[k], self._option(k), n) for k, n in some.items()]
                for some in (old, new)
            )
            self._compared[pair] = self.times.compare(before, after)

    def known_ratio(self, old: KernelCounts, new: KernelCounts) -> float | None:
        """Return the time of `new` over that of `old` if they were timed in turns."""
        return self._compared.get(_pair(old, new))

    def _stored_us(self, key: str) -> float | None:
        if self.store is None:
            return None
        if self._stored is None:
            self._stored = {}
            for t in tuning_records.measured_options(self.store, self.times.store_target()):
                self._stored.setdefault(t.problem, {})[t.option] = t.seconds
        seconds = self._stored.get(problem_digest(self.problems[key]), {}).get(self._option(key))
        self.store_hits += seconds is not None
        return None if seconds is None else 1e6 * seconds

    def _measure(self, key: str) -> float | None:
        p, option = self.problems[key], self._option(key)
        found = self.times.measure(p, option)
        if found is None:
            return None
        self.measured_count += 1
        if self.store is not None:
            target, numbers = self.times.store_target(), self.times.problem_numbers(p)
            row = {option: found}
            tuning_records.store_times(self.store, target, problem_digest(p), numbers, row)
        return 1e6 * found[0]

    def _option(self, key: str) -> Option:
        found = self._options.get(key)
        if found is None:
            p = self.problems[key]
            tuned = self.settings.options.get(problem_digest(p))
            found = self.times.default_option(p) if tuned is None else tuned
            self._options[key] = found
        return found

    def _estimate(self, key: str) -> Estimate:
        found = self._estimates.get(key)
        if found is None:
            found = self.times.estimate(self.problems[key], self._option(key))
            self._estimates[key] = found
        return found

    def _ratio(self, estimate: Estimate) -> float:
        """Return the expected time over the estimate: the mean of the logarithms of measured
        problems of the algorithm, weighted by similarity (Nadaraya, 1964)."""
        weights = total = 0.0
        for logs, ratio in self._ratios.get(estimate.algorithm, ()):
            apart = sum((a - b) ** 2 for a, b in zip(logs, estimate.logs, strict=True))
            weight = math.exp(-apart / 2) + 1e-6
            weights += weight
            total += weight * ratio
        return math.exp(total / weights) if weights else self.times.unknown_ratio


def _dependencies(problems: PlanProblems, found: Iterable[KernelProblem]) -> list[Collection[int]]:
    """Return the kernels that each of these waits for."""
    reads, writes = [], []
    for each in found:
        read = (each.views.get(x, BufferView(x, 0)).buffer for x in each.inputs)
        reads.append([problems.tensor_of.get(b, b) for b in read])
        writes.append(each.target)
    return [*dependencies(reads, writes)]


def _pair(old: KernelCounts, new: KernelCounts) -> object:
    return frozenset(old.items()), frozenset(new.items())
