"""What prices plans of graphs; the compiler implements it (plan/timing/plan_kernels.py)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from superopt.ir import graph as ir_graph

KernelCounts = Mapping[str, int]  # how often a plan computes each problem, by its key


class Planner(Protocol):
    """Plans graphs, and times kernels. free_rules: those that are applied to each graph before it
    is planned. has_streams: kernels may run concurrently. measured_count, store_hits,
    estimated_count: times that it measured, read from the store, and only predicted."""

    free_rules: Collection[str]
    measured_count: int
    store_hits: int
    estimated_count: int

    @property
    def has_streams(self) -> bool: ...

    def kernels_of(self, graph: ir_graph.Graph) -> KernelCounts | None:
        """Return the kernels of a graph's plan; None if it has none."""

    def plan_us(self, graph: ir_graph.Graph) -> float:
        """Return the microseconds of a run of a graph's plan; 0 if it has none."""

    def us(self, key: str) -> float:
        """Return the microseconds that a kernel adds to a plan, measured or predicted."""

    def measure(self, keys: Iterable[str]) -> bool:
        """Measure these kernels, if that is possible here. Return False if there was no time."""

    def compare(self, old: KernelCounts, new: KernelCounts) -> None:
        """Time some kernels in turns with others."""

    def known_ratio(self, old: KernelCounts, new: KernelCounts) -> float | None:
        """Return the time of `new` over that of `old` if they were timed in turns."""
