"""What the kernels of a graph's plan cost: measured where they were measured, else predicted.

A graph is simplified and planned as it is compiled, up to the problems of its kernels; no code is
generated. The time of a problem that nobody measured is its roofline (Williams et al., CACM 2009),
times how far measured problems of its algorithm are above theirs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from superopt.ir import graph as ir_graph
from superopt.kernels.algorithms.digests import problem_digest
from superopt.kernels.algorithms.problem import Problem
from superopt.kernels.algorithms.space import best_option, build_choice
from superopt.kernels.llvm.operation_count import count_bytes, count_operations
from superopt.kernels.loops.option import Option
from superopt.kernels.runtime.cpu import Machine
from superopt.kernels.runtime.cpu_peak import CpuPeak
from superopt.plan.graph.partition import NO_KERNEL_ERRORS
from superopt.plan.graph.simplify import simplify_graph
from superopt.plan.passes import PASSES, initial_plan, run_passes
from superopt.plan.program.call_operations import stage_operations
from superopt.plan.program.kernel_problems import PlanProblems
from superopt.plan.program.plan import Settings
from superopt.plan.timing.cpu import build_runnable
from superopt.plan.timing.turns import (
    TimedKernel,
    ratio_in_turns,
    reference_product,
    seconds_in_turns,
)

COMPARED_ROUNDS = 15  # of kernels before and after a rewrite
CALL_US = 0.15  # of calling one more kernel
KernelCounts = Mapping[str, int]  # how often a plan solves a problem, by its key
_PRICED_PASSES = PASSES[: next(n for n, x in enumerate(PASSES) if x.name == "select-kernels")]


@dataclass(slots=True)
class PlanKernels:
    """The kernels of plans of graphs for one machine, and their times.

    options: of problems, where not the default. counts: of graphs, by their outputs; None where a
    graph has no plan.
    """

    settings: Settings
    machine: Machine
    threads: int
    peak: CpuPeak
    float_class: str = "E2"
    folder: Path | None = None
    problems: dict[str, Problem] = field(default_factory=dict)
    measured_us: dict[str, float] = field(default_factory=dict)
    roofline_us: dict[str, tuple[float, str]] = field(default_factory=dict)
    ratios: dict[str, list[float]] = field(default_factory=dict)
    reference: TimedKernel | None = None
    compared: dict[object, float] = field(default_factory=dict)
    counts: dict[tuple[ir_graph.Value, ...], KernelCounts | None] = field(default_factory=dict)
    planned: int = 0

    def kernels_of(self, graph: ir_graph.Graph) -> KernelCounts | None:
        """Return the problems of a graph's plan; None if an operator has no kernel."""
        if graph.outputs not in self.counts:
            self.counts[graph.outputs] = self._plan(graph)
        return self.counts[graph.outputs]

    def _plan(self, graph: ir_graph.Graph) -> KernelCounts | None:
        self.planned += 1
        try:
            simple = simplify_graph(graph, self.float_class, self.threads)
            p = initial_plan(simple, {}, self.settings)
            run_passes(p, _PRICED_PASSES)
            found = Counter[str]()
            for each in PlanProblems.of_plan(p):
                key = problem_digest(each.problem)
                self.problems.setdefault(key, each.problem)
                found[key] += 1
        except NO_KERNEL_ERRORS:
            return None
        return found

    def us(self, key: str) -> float:
        """Return the microseconds of a problem, measured or predicted."""
        found = self.measured_us.get(key)
        if found is not None:
            return found
        roofline, algorithm = self._roofline(key)
        return roofline * self._ratio(algorithm) + CALL_US

    def total_us(self, counts: KernelCounts) -> float:
        """Return the microseconds of all kernels."""
        return sum(n * self.us(key) for key, n in counts.items())

    def measure(self, keys: Iterable[str], is_over: Callable[[], bool] = lambda: False) -> bool:
        """Measure problems that were not measured. Return False if the time was over before."""
        for key in keys:
            if key in self.measured_us:
                continue
            if is_over():
                return False
            us = self.measured_us[key] = self._measure(key)
            roofline, algorithm = self._roofline(key)
            self.ratios.setdefault(algorithm, []).append(math.log(max(us / roofline, 1e-3)))
        return True

    def _measure(self, key: str) -> float:
        if self.reference is None:
            self.reference = reference_product(self.machine, self.threads)
        return 1e6 * seconds_in_turns(self._timed(key), self.reference)

    def compare(self, old: KernelCounts, new: KernelCounts) -> float:
        """Return the time of some kernels over that of others, timed in turns."""
        about = frozenset(old.items()), frozenset(new.items())
        if about not in self.compared:
            sides = [[(self._timed(k), n) for k, n in some.items()] for some in (old, new)]
            self.compared[about] = ratio_in_turns(*sides, rounds=COMPARED_ROUNDS)
        return self.compared[about]

    def _timed(self, key: str) -> TimedKernel:
        problem, option = self.problems[key], self._option(key)
        run = build_runnable(problem, option, self.machine, self.threads, self.folder)
        return TimedKernel.of_run(run, self.threads)

    def _option(self, key: str) -> Option:
        found = self.settings.options.get(key)
        return best_option(self.problems[key]) if found is None else found

    def _roofline(self, key: str) -> tuple[float, str]:
        found = self.roofline_us.get(key)
        if found is None:
            p, option = self.problems[key], self._option(key)
            total = count_operations(p.tensor)
            own = sum(stage_operations(build_choice(p, option), total))
            fixed, other = count_bytes(p.tensor, p.constants)
            memory = fixed / self.peak.memory_bandwidth + other / self.peak.bandwidth(other)
            found = 1e6 * max(own / self.peak.flops, memory, 1e-9), option.algorithm
            self.roofline_us[key] = found
        return found

    def _ratio(self, algorithm: str) -> float:
        some = self.ratios.get(algorithm)
        return math.exp(sum(some) / len(some)) if some else 1.3
