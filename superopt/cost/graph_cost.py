"""The cost of a graph: the times of its nodes in a runtime, and a price for its weights.

Each node is timed with weights that come from memory. In a graph, weights that several nodes share
stay in the cache, so two copies of a weight cost more than one: each distinct weight has a price.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from superopt.cost.fusion import FUSIBLE, is_fused_in_onnxruntime
from superopt.cost.roofline import NODE_OVERHEAD_US, nbytes, roofline_us
from superopt.cost.signature import Signature, signature
from superopt.ir import graph as ir_graph
from superopt.ir.constant_values import is_constant

MIN_PRICED_WEIGHT_BYTES = 1 << 16  # smaller weights stay in the cache
WEIGHT_BYTES_PER_US = (
    50e3  # 50 GB/s: about the observed cost of a copy of a recurrent net's weights
)
UNKNOWN_NODE_US = 5.0  # a node of unknown types: it is in both graphs, so its cost cancels


Change = Mapping[ir_graph.Value, ir_graph.Value]


class GraphIndex(Protocol):
    """A graph with its indices: the order of its nodes, the readers of its values, its outputs."""

    @property
    def graph(self) -> ir_graph.Graph: ...
    @property
    def position(self) -> Mapping[ir_graph.Node, int]: ...
    @property
    def users(self) -> Mapping[ir_graph.Value, Sequence[ir_graph.Node]]: ...
    @property
    def outputs(self) -> frozenset[ir_graph.Value]: ...


@dataclass(frozen=True, slots=True)
class Replacement:
    """A rewrite of a graph: the values that it replaces, and the nodes that it adds and removes."""

    ctx: GraphIndex
    change: Change
    added: Sequence[ir_graph.Node]
    removed: Sequence[ir_graph.Node]


@dataclass(frozen=True, slots=True)
class ChangeCost:
    """The effect of a rewrite: the change in microseconds, and the microseconds of what it removes
    and of what it adds."""

    us: float
    removed_us: float
    added_us: float


class NodeCostModel(Protocol):
    """Returns the costs of nodes with the given signatures, in microseconds."""

    def __call__(self, signatures: Sequence[Signature]) -> Sequence[float]: ...


@dataclass(slots=True)
class GraphCosts:
    """Costs of nodes and graphs at representative sizes, with caching.

    cost_model: prices new signatures; is_fused: true if the runtime computes a node as part of
    another one, given which of its operands are constants; free_rules: what it rewrites anyway;
    has_plans: costs are of plans, which take long to compute;
    has_streams: kernels may run concurrently, and each has a launch, so that a run takes less time
    than its nodes together: rules that merge nodes are tried first, and `run_cost` must fall.
    """

    sizes: Mapping[str, int]
    cost_model: NodeCostModel
    is_fused: Callable[[ir_graph.Node, tuple[bool, ...]], bool] = is_fused_in_onnxruntime
    prices: dict[Signature, float] = field(default_factory=dict)
    constant_nodes: dict[ir_graph.Node, bool] = field(default_factory=dict)
    free_rules: Collection[str] = ()
    has_plans: bool = False
    has_streams: bool = False
    _nodes: dict[ir_graph.Node, float] = field(default_factory=dict)
    _weights: dict[ir_graph.Value, float] = field(default_factory=dict)

    def node_costs(self, nodes: Iterable[ir_graph.Node]) -> list[float]:
        """Return the microseconds of each node; new signatures are priced together."""
        wanted = list(nodes)
        pending: dict[ir_graph.Node, Signature] = {}
        for n in wanted:
            if n in self._nodes:
                continue
            if self.is_constant(n):
                self._nodes[n] = 0.0
                continue
            flags = tuple(
                isinstance(v, ir_graph.Constant)
                or (
                    v is not None
                    and ir_graph.producer(v) is not None
                    and is_constant(v, self.constant_nodes)
                )
                for v in n.inputs
            )
            if self.is_fused(n, flags):
                self._nodes[n] = 0.0
                continue
            s = None if n.op.opaque else signature(n, self.sizes, flags)
            known = UNKNOWN_NODE_US if s is None else self.prices.get(s)
            if known is not None:
                self._nodes[n] = known
            elif s is not None:
                pending[n] = s
        if pending:
            fresh = list(dict.fromkeys(pending.values()))
            self.prices.update(zip(fresh, self.cost_model(fresh), strict=True))
            for n, s in pending.items():
                self._nodes[n] = self.prices[s]
        return [self._nodes[n] for n in wanted]

    def change_cost(self, r: Replacement) -> ChangeCost | None:
        """Return the effect of a rewrite; None if the new graph has no cost."""
        before, after = sum(self.node_costs(r.removed)), sum(self.node_costs(r.added))
        us = after - before + _reader_delta(r.ctx, r.change, r.removed, self)
        return ChangeCost(us + _weight_delta(r.ctx, r.added, r.removed, self), before, after)

    def rough_us(self, r: Replacement) -> float:
        """Return the effect of a rewrite in microseconds by the sum over operators."""
        found = GraphCosts.change_cost(self, r)
        return 0.0 if found is None else found.us

    def measured_change_cost(self, r: Replacement) -> ChangeCost | None:
        """Return the effect of a rewrite, measured where `change_cost` only predicts it."""
        return self.change_cost(r)

    def node_cost(self, n: ir_graph.Node) -> float:
        """Return the microseconds of one node."""
        known = self._nodes.get(n)
        return self.node_costs((n,))[0] if known is None else known

    def operator_cost(self, graph: ir_graph.Graph) -> float:
        """Return the microseconds of a graph's nodes together."""
        return sum(self.node_costs(ir_graph.nodes(graph)))

    def graph_cost(self, graph: ir_graph.Graph) -> float:
        """Return the microseconds of a graph: its nodes and its distinct weights."""
        nodes = ir_graph.nodes(graph)
        return sum(self.node_costs(nodes)) + sum(map(self.weight_cost, self.priced_weights(nodes)))

    def run_cost(self, graph: ir_graph.Graph) -> float:
        """Return the microseconds of a run of a whole model."""
        return self.graph_cost(graph)

    def run_delta(self, ctx: GraphIndex, change: Change) -> float:
        """Return the microseconds that a rewrite adds to a run of the nodes around it, if kernels
        run concurrently; else 0: `change_cost` has them."""
        return 0.0

    def graph_cost_within(self, graph: ir_graph.Graph, limit_us: float) -> float | None:
        """Return the microseconds of a graph, None if they exceed `limit_us`.

        Nodes are priced one by one, those with the largest roofline time first, until the limit is
        exceeded.
        """
        nodes = ir_graph.nodes(graph)
        rough = GraphCosts(
            self.sizes, roofline_cost_model(1), self.is_fused, constant_nodes=self.constant_nodes
        )
        total = sum(map(self.weight_cost, self.priced_weights(nodes)))
        for _, n in sorted(zip(rough.node_costs(nodes), nodes, strict=True), key=lambda x: -x[0]):
            total += self.node_cost(n)
            if total > limit_us:
                return None
        return self.graph_cost(graph)

    def priced_weights(self, nodes: Iterable[ir_graph.Node]) -> set[ir_graph.Value]:
        """Return the constant operands of `nodes` (after folding) that are large enough for a
        price."""
        read = (v for n in nodes if not self.is_constant(n) for v in n.inputs if v is not None)
        return {v for v in read if self.weight_cost(v)}

    def weight_cost(self, v: ir_graph.Value) -> float:
        """Return the microseconds of one more distinct weight; 0 for other values."""
        known = self._weights.get(v)
        if known is None:
            known = self._weights[v] = self._compute_weight_cost(v)
        return known

    def _compute_weight_cost(self, v: ir_graph.Value) -> float:
        if not is_constant(v, self.constant_nodes):
            return 0.0
        size = nbytes(v.type)
        return size / WEIGHT_BYTES_PER_US if size >= MIN_PRICED_WEIGHT_BYTES else 0.0

    def is_constant(self, n: ir_graph.Node) -> bool:
        """True if `n` is computed ahead of time."""
        known = self.constant_nodes.get(n)
        return is_constant(ir_graph.result(n, 0), self.constant_nodes) if known is None else known


def _weight_delta(
    ctx: GraphIndex,
    added: Sequence[ir_graph.Node],
    dead: Sequence[ir_graph.Node],
    costs: GraphCosts,
) -> float:
    """Return the change in cost of the graph's distinct weights."""
    read, unread = costs.priced_weights(added), costs.priced_weights(dead)
    if not read and not unread:
        return 0.0
    gone = set(dead)

    def stays(v: ir_graph.Value) -> bool:
        return any(u not in gone and not costs.is_constant(u) for u in ctx.users.get(v, ()))

    new = [v for v in read if not any(not costs.is_constant(u) for u in ctx.users.get(v, ()))]
    old = [v for v in unread if v not in read and not stays(v)]
    return sum(map(costs.weight_cost, new)) - sum(map(costs.weight_cost, old))


def _reader_delta(
    ctx: GraphIndex,
    change: Change,
    dead: Container[ir_graph.Node],
    costs: GraphCosts,
) -> float:
    """Return the change in cost of the readers of the replaced values, as their fusion changes."""
    us = 0.0
    readers = {u for old in change for u in ctx.users.get(old, ())}
    for u in readers:
        if u.op.name not in FUSIBLE or u in dead:
            continue
        inputs = tuple(None if v is None else change.get(v, v) for v in u.inputs)
        after = ir_graph.intern_node(u.op, inputs, u.attrs, u.types)
        us += costs.node_cost(after) - costs.node_cost(u)
    return us


def roofline_cost_model(threads: int) -> NodeCostModel:
    """Return a cost model that measures nothing."""
    return lambda signatures: [roofline_us(s, threads) for s in signatures]


def table_cost_model(
    table: Mapping[str, float], otherwise: Callable[[Signature], float] | None = None
) -> NodeCostModel:
    """Return a cost model that reads a table by operator name (tests, replays)."""

    def price(s: Signature) -> float:
        if s.op.name in table:
            return table[s.op.name]
        return otherwise(s) if otherwise else NODE_OVERHEAD_US

    return lambda signatures: [price(s) for s in signatures]


def stable_seed(s: Signature) -> int:
    """Return a seed for random operands that depends only on the signature."""
    return zlib.crc32(str(s).encode())
