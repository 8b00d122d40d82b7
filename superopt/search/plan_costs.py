"""The cost of a graph by the kernels of its plan, planned only where a rewrite changes it.

A compiler fuses, chooses layouts, and overlaps, so that the sum over operators prefers graphs that
are slower. Here a rewrite costs what the kernels around it cost afterwards, less what they cost
before: the nodes that it adds and removes, and those around them up to the next operator into which
nothing is fused. What lies beyond is the same in both. Weights and inputs are stand-ins there, so
that equal neighborhoods, of equal layers and of all graphs of a search, are planned once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from superopt.cost.graph_cost import Change, ChangeCost, GraphCosts, GraphIndex
from superopt.ir import graph as ir_graph
from superopt.ir.stand_ins import constant_stand_in, numbered_input
from superopt.ir.substitute import ReplacementCycle, replace_all

MARK = "p"  # of the stand-ins of plans, which replace those of pieces
MAX_NEIGHBORS = 32  # nodes of a neighborhood beyond those that the rewrite touches
MAX_FUSED_STEPS = 4  # fused nodes that are followed from a touched one

KernelCounts = Mapping[str, int]  # how often a plan computes each problem


class Planner(Protocol):
    """Plans graphs, and times kernels."""

    def kernels_of(self, graph: ir_graph.Graph) -> KernelCounts | None:
        """Return the kernels of a graph's plan; None if it has none."""

    def us(self, key: str) -> float:
        """Return the microseconds of a kernel, measured or predicted."""

    def measure(self, keys: Iterable[str]) -> bool:
        """Measure these kernels. Return False if there was no time."""

    def compare(self, old: KernelCounts, new: KernelCounts) -> float:
        """Return the time of some kernels over that of others, timed in turns."""


@dataclass(frozen=True, slots=True)
class _KernelChange:
    """The kernels that a rewrite removes and adds; None for both if one of the graphs has no
    plan."""

    removed: KernelCounts | None
    added: KernelCounts | None


@dataclass(slots=True)
class PlanCosts(GraphCosts):
    """Costs by the kernels of plans; see `GraphCosts`.

    priced_count: how many rewrites were priced.
    """

    planner: Planner | None = None
    priced_count: int = 0
    _changes: dict[object, _KernelChange] = field(default_factory=dict)
    _graphs: dict[ir_graph.Graph, KernelCounts] = field(default_factory=dict)

    def graph_cost(self, graph: ir_graph.Graph) -> float:
        """Return the microseconds of the kernels of a graph's plan."""
        return self.operator_cost(graph)

    def operator_cost(self, graph: ir_graph.Graph) -> float:
        """Return the microseconds of the kernels of a graph's plan: weights are part of them."""
        found = self._graphs.get(graph)
        if found is None:
            found = self._graphs[graph] = self.kernels_of(graph)
        assert self.planner is not None
        return sum(n * self.planner.us(key) for key, n in found.items())

    def kernels_of(self, graph: ir_graph.Graph) -> KernelCounts:
        """Return the kernels of a graph's plan; those of its parts, if an operator has none."""
        assert self.planner is not None
        nodes = dict.fromkeys(n for n in ir_graph.nodes(graph) if not self.is_constant(n))
        before, _ = self._with_stand_ins(graph.outputs, (), nodes, nodes)
        found = self.planner.kernels_of(before)
        return {} if found is None else found

    def change_cost(
        self,
        ctx: GraphIndex,
        change: Change,
        added: Sequence[ir_graph.Node],
        removed: Sequence[ir_graph.Node],
    ) -> ChangeCost | None:
        """Return the effect of a rewrite on the kernels of the plan; None if it leaves no plan."""
        self.priced_count += 1
        return self._cost_of(self._kernel_change(ctx, change, added, removed))

    def measured_change_cost(
        self,
        ctx: GraphIndex,
        change: Change,
        added: Sequence[ir_graph.Node],
        removed: Sequence[ir_graph.Node],
    ) -> ChangeCost | None:
        """Return the effect after measuring the kernels that the rewrite adds and removes."""
        found = self._kernel_change(ctx, change, added, removed)
        if found.removed is None or found.added is None:
            return None
        assert self.planner is not None
        self.planner.measure((*found.removed, *found.added))
        cost = self._cost_of(found)
        if cost is None or cost.us >= 0 or not found.added:
            return cost
        # Two measurements of different times may differ by their noise.
        after = cost.removed_us * self.planner.compare(found.removed, found.added)
        return ChangeCost(after - cost.removed_us, cost.removed_us, after)

    def _cost_of(self, found: _KernelChange) -> ChangeCost | None:
        if found.removed is None or found.added is None:
            return None
        assert self.planner is not None
        us = self.planner.us
        before = sum(n * us(key) for key, n in found.removed.items())
        after = sum(n * us(key) for key, n in found.added.items())
        return ChangeCost(after - before, before, after)

    def _kernel_change(
        self,
        ctx: GraphIndex,
        change: Change,
        added: Sequence[ir_graph.Node],
        removed: Sequence[ir_graph.Node],
    ) -> _KernelChange:
        around = self._neighborhood(ctx, change, added, removed)
        key = (tuple(change.items()), tuple(sorted(around, key=ctx.position.__getitem__)))
        found = self._changes.get(key)
        if found is None:
            found = self._changes[key] = self._plan_change(ctx, change, around)
        return found

    def _plan_change(
        self, ctx: GraphIndex, change: Change, around: Collection[ir_graph.Node]
    ) -> _KernelChange:
        outputs = tuple(
            r
            for n in sorted(around, key=ctx.position.__getitem__)
            for r in ir_graph.results(n)
            if r in ctx.outputs or any(u not in around for u in ctx.users.get(r, ()))
        )
        try:
            new = replace_all(ir_graph.Graph((), outputs), change).outputs
        except ReplacementCycle:
            return _KernelChange(None, None)
        before, after = self._with_stand_ins(outputs, new, around, ctx.position)
        assert self.planner is not None
        old = self.planner.kernels_of(before)
        made = self.planner.kernels_of(after)
        if old is None or made is None:
            return _KernelChange(None, None)
        keys = dict.fromkeys((*old, *made))
        less = {k: old.get(k, 0) - made.get(k, 0) for k in keys}
        return _KernelChange(
            {k: n for k, n in less.items() if n > 0}, {k: -n for k, n in less.items() if n < 0}
        )

    def _neighborhood(
        self,
        ctx: GraphIndex,
        change: Change,
        added: Sequence[ir_graph.Node],
        removed: Sequence[ir_graph.Node],
    ) -> dict[ir_graph.Node, None]:
        """Return the nodes of the graph whose kernels may differ after the rewrite: those removed,
        those next to added or removed ones, and from there on through fused nodes."""
        found = dict.fromkeys(removed)
        read = {v for n in (*added, *removed) for v in n.inputs if v is not None}
        read.update(change.values())
        edge: dict[ir_graph.Node, None] = {}
        for v in read:
            p = ir_graph.producer(v)
            if p in ctx.position and not self.is_constant(p):  # type: ignore[arg-type]
                edge[p] = None  # type: ignore[index]
                if is_fused(p):  # type: ignore[arg-type]
                    edge.update(dict.fromkeys(ctx.users.get(v, ())))
        for old in change:
            edge.update(dict.fromkeys(ctx.users.get(old, ())))
        limit = len(found) + MAX_NEIGHBORS
        for _ in range(MAX_FUSED_STEPS):
            new = [n for n in edge if n not in found and not n.op.opaque]
            if not new or len(found) + len(new) > limit:
                break
            found.update(dict.fromkeys(new))
            edge = {}
            for n in new:
                if not is_fused(n):
                    continue
                for r in ir_graph.results(n):
                    edge.update(dict.fromkeys(ctx.users.get(r, ())))
                for v in n.inputs:
                    p = None if v is None else ir_graph.producer(v)
                    if p is not None and not self.is_constant(p):
                        edge[p] = None
        return {n: None for n in found if not n.op.opaque and not self.is_constant(n)}

    def _with_stand_ins(
        self,
        old: tuple[ir_graph.Value, ...],
        new: tuple[ir_graph.Value, ...],
        around: Collection[ir_graph.Node],
        members: Collection[ir_graph.Node],
    ) -> tuple[ir_graph.Graph, ir_graph.Graph]:
        """Return the graphs of these outputs, with the same stand-ins for what they read."""
        stand: dict[ir_graph.Value, ir_graph.Value] = {}
        inputs: list[ir_graph.Input] = []
        done: set[ir_graph.Node] = set()
        stack = [p for v in (*old, *new) if (p := ir_graph.producer(v)) is not None]
        stack.reverse()
        while stack:
            n = stack.pop()
            if n in done:
                continue
            done.add(n)
            for v in n.inputs:
                if v is None or v in stand:
                    continue
                p = ir_graph.producer(v)
                made: ir_graph.Value
                is_inside = p is not None and (p in around or p not in members)
                if is_inside and not self.is_constant(p):
                    stack.append(p)
                    continue
                if isinstance(v, ir_graph.Constant) or (p is not None and self.is_constant(p)):
                    made = constant_stand_in(v, len(stand), MARK)
                    if made is v and p is not None:
                        stack.append(p)
                        continue
                else:
                    made = numbered_input(len(stand), v.type, MARK)
                    inputs.append(made)
                stand[v] = made
        all_ = replace_all(ir_graph.Graph((), (*old, *new)), stand).outputs
        given = tuple(inputs)
        return ir_graph.Graph(given, all_[: len(old)]), ir_graph.Graph(given, all_[len(old) :])


def is_fused(n: ir_graph.Node) -> bool:
    """True if a compiler may compute `n` within the kernel of another node."""
    laws = n.op.laws
    return "elementwise" in laws or "data" in laws or n.op.name == "BatchNormalization"
