"""The cost of a graph by the kernels of its plan, planned only where a rewrite changes it.

A compiler fuses, chooses layouts, and overlaps, so that a sum over operators prefers graphs that
are slower. Here a rewrite costs what the kernels around it cost afterwards, less what they cost
before (`neighborhood.py`). What lies beyond is the same in both. Weights and inputs are stand-ins,
so that equal neighborhoods, of equal layers and of all graphs of a search, are planned once.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from superopt.cost.graph_cost import Change, ChangeCost, GraphCosts, GraphIndex, Replacement
from superopt.cost.planner import KernelCounts, Planner
from superopt.ir import graph as ir_graph
from superopt.ir.substitute import ReplacementCycle, replace_all
from superopt.rules.match.graph_context import graph_context
from superopt.search.neighborhood import find_neighborhood, outer_values, with_stand_ins
from superopt.search.partition import cut_positions

PART_NODES = 96  # of a part of a graph that has no plan as a whole, at most
WINDOW_NODES = 40  # before and after a rewrite, whose kernels may run beside what it changes


@dataclass(frozen=True, slots=True)
class _KernelChange:
    """The kernels that a rewrite removes from the plan, and those that it adds."""

    removed: KernelCounts
    added: KernelCounts


@dataclass(slots=True)
class PlanCosts(GraphCosts):
    """Costs by the kernels of plans; see `GraphCosts`. Nodes and weights have no cost of their own.

    priced_count: how many rewrites were priced.
    """

    has_plans: bool = True
    planner: Planner | None = None
    priced_count: int = 0
    _changes: dict[object, _KernelChange | None] = field(default_factory=dict)
    _kinds: dict[object, _KernelChange | None] = field(default_factory=dict)
    _graphs: dict[ir_graph.Graph, ir_graph.Graph] = field(default_factory=dict)

    @property
    def plans(self) -> Planner:
        assert self.planner is not None
        return self.planner

    def graph_cost(self, graph: ir_graph.Graph) -> float:
        """Return the microseconds of the kernels of a graph's plan, measured if there is time."""
        self.plans.measure(self.kernels_of(graph))
        return self.operator_cost(graph)

    def run_cost(self, graph: ir_graph.Graph) -> float:
        """Return the microseconds of a run of a graph's plan, with concurrent kernels."""
        self.plans.measure(self.kernels_of(graph))
        planned = self._planned_graph(graph)
        if self.plans.kernels_of(planned) is None:
            return self.operator_cost(graph)
        return self.plans.plan_us(planned)

    def run_delta(self, ctx: GraphIndex, change: Change) -> float:
        """Return the microseconds that a rewrite adds to a run of the nodes around it."""
        order = list(ctx.position)
        makers = (p for v in change if (p := ir_graph.producer(v)) is not None)
        at = [ctx.position[p] for p in makers if p in ctx.position]
        window = order[max(min(at) - WINDOW_NODES, 0) : max(at) + WINDOW_NODES + 1]
        before, after = self._planned_around(
            ctx, change, [n for n in window if not n.op.opaque and not self.is_constant(n)]
        )
        if after is None or self.plans.kernels_of(after) is None:
            return math.inf
        return self.plans.plan_us(after) - self.plans.plan_us(before)

    def operator_cost(self, graph: ir_graph.Graph) -> float:
        """Return the microseconds of the kernels of a graph's plan, which read its weights."""
        return sum(n * self.plans.us(key) for key, n in self.kernels_of(graph).items())

    def kernels_of(self, graph: ir_graph.Graph) -> KernelCounts:
        """Return the kernels of a graph's plan without its opaque nodes; if it has none as a whole,
        those of parts of it that have one."""
        found = self.plans.kernels_of(self._planned_graph(graph))
        if found is None:
            found = Counter[str]()
            for part in self._parts(graph, PART_NODES):
                found.update(self.plans.kernels_of(part) or {})
        return found

    def _planned_graph(self, graph: ir_graph.Graph) -> ir_graph.Graph:
        """Return a graph without its opaque nodes, with stand-ins."""
        found = self._graphs.get(graph)
        if found is None:
            (found,) = self._parts(graph, len(ir_graph.nodes(graph)) or 1)
            self._graphs[graph] = found
        return found

    def _parts(self, graph: ir_graph.Graph, node_count: int) -> list[ir_graph.Graph]:
        """Return parts of a graph without its opaque nodes, each of so many nodes, with
        stand-ins."""
        ctx = graph_context(graph)
        own = [n for n in ctx.position if not n.op.opaque and not self.is_constant(n)]
        # At the narrowest places, as layers are: equal layers are planned once.
        at = [0, *cut_positions(own, graph.outputs, node_count), len(own)]
        parts = [own[a:b] for a, b in pairwise(at)]
        return [
            with_stand_ins([outer_values(ctx, p)], set(p), ctx.position, self.is_constant)[0]
            for p in parts
        ]

    def change_cost(self, r: Replacement) -> ChangeCost | None:
        """Return the effect of a rewrite on the kernels; None if it leaves no plan."""
        self.priced_count += 1
        found = self._kernel_change(r)
        return None if found is None else self._cost(found)

    def measured_change_cost(self, r: Replacement) -> ChangeCost | None:
        """Return the effect of a rewrite after measuring what it removes and adds, a gain in
        turns; None if there was no time to measure it."""
        found = self._kernel_change(r)
        if found is None or not self.plans.measure((*found.removed, *found.added)):
            return None
        if found.added and self._cost(found).us < 0:
            self.plans.compare(found.removed, found.added)  # other times differ by their noise
        return self._cost(found)

    def _cost(self, found: _KernelChange) -> ChangeCost:
        us = self.plans.us
        before = sum(n * us(key) for key, n in found.removed.items())
        ratio = self.plans.known_ratio(found.removed, found.added)
        if ratio is None:
            after = sum(n * us(key) for key, n in found.added.items())
        else:
            after = before * ratio
        return ChangeCost(after - before, before, after)

    def _kernel_change(self, r: Replacement) -> _KernelChange | None:
        around = find_neighborhood(r, self.is_constant)
        about = (tuple(r.change.items()), tuple(around))
        if about not in self._changes:
            kind = _kinds(around), _kinds(r.added), _kinds(r.removed)
            if kind not in self._kinds:
                self._kinds[kind] = self._plan_change(r.ctx, r.change, around)
            self._changes[about] = self._kinds[kind]
        return self._changes[about]

    def _plan_change(
        self, ctx: GraphIndex, change: Change, around: Sequence[ir_graph.Node]
    ) -> _KernelChange | None:
        before, after = self._planned_around(ctx, change, around)
        old = self.plans.kernels_of(before)
        made = self.plans.kernels_of(after) if old is not None and after is not None else None
        if old is None or made is None:
            return None
        more = {k: made.get(k, 0) - old.get(k, 0) for k in dict.fromkeys((*old, *made))}
        return _KernelChange(
            {k: -n for k, n in more.items() if n < 0}, {k: n for k, n in more.items() if n > 0}
        )

    def _planned_around(
        self, ctx: GraphIndex, change: Change, around: Sequence[ir_graph.Node]
    ) -> tuple[ir_graph.Graph, ir_graph.Graph | None]:
        """Return the graphs of these nodes before a rewrite and after it, with stand-ins; None if
        that would make a cycle."""
        # Stand-ins first: what leads from one of these nodes to another through others is cut.
        before, olds, news = with_stand_ins(
            [outer_values(ctx, around), tuple(change), tuple(change.values())],
            set(around), ctx.position, self.is_constant,
        )  # fmt: skip
        try:
            return before, replace_all(before, dict(zip(olds.outputs, news.outputs, strict=True)))
        except ReplacementCycle:
            return before, None


def _kinds(nodes: Iterable[ir_graph.Node]) -> object:
    return frozenset(Counter(map(_kind, nodes)).items())


def _kind(n: ir_graph.Node) -> object:
    """Return what the cost of a node depends on: slices of one size cost the same anywhere, and so
    do parts of a concatenation in any order."""
    anywhere = ("starts", "ends") if n.op.name == "Slice" else ()
    attrs = tuple((k, v) for k, v in n.attrs if k not in anywhere)
    types = [None if v is None else v.type for v in n.inputs]
    ordered = n.op.name != "Concat"
    return n.op, attrs, n.types, tuple(types) if ordered else frozenset(Counter(types).items())
