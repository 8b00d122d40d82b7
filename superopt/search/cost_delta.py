"""The change in cost of a rewrite, and applying several rewrites together."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from superopt.cost.graph_cost import ChangeCost, GraphCosts, Replacement
from superopt.ir import graph as ir_graph
from superopt.ir.substitute import replace_all
from superopt.rules.match.graph_context import GraphContext


@dataclass(frozen=True, slots=True)
class Delta:
    """The nodes that a rewrite adds and removes, and its effect on the cost."""

    added: tuple[ir_graph.Node, ...]
    removed: tuple[ir_graph.Node, ...]
    cost: ChangeCost

    @property
    def us(self) -> float:
        """The change in microseconds."""
        return self.cost.us


def cost_delta(
    ctx: GraphContext, change: Mapping[ir_graph.Value, ir_graph.Value], costs: GraphCosts
) -> Delta | None:
    """Return the effect of `change` on the cost of the graph, without building the new graph.

    None if no gain is possible (see `find_replacement`), or if the new graph has no cost.
    """
    r = find_replacement(ctx, change)
    return None if r is None else replacement_delta(r, costs)


def replacement_delta(r: Replacement, costs: GraphCosts) -> Delta | None:
    """Return the effect of a rewrite on the cost of the graph; None if the new one has no cost."""
    cost = costs.change_cost(r)
    return None if cost is None else Delta(tuple(r.added), tuple(r.removed), cost)


def find_replacement(
    ctx: GraphContext, change: Mapping[ir_graph.Value, ir_graph.Value]
) -> Replacement | None:
    """Return the nodes that a rewrite adds and removes; None if the new ones use replaced ones,
    which then stay."""
    members = ctx.position
    added = _added_nodes(members, change)
    kept: set[ir_graph.Node] = set()  # nodes of the graph that the new ones read
    for n in added:
        for i in n.inputs:
            p = None if i is None else ir_graph.producer(i)
            if p is not None and p in members:
                kept.add(p)
    for new in change.values():
        p = ir_graph.producer(new)
        if p is not None and p in members:
            kept.add(p)
    if _is_replaced_read(ctx, change, kept):
        return None
    dead = _dead_nodes(ctx, change, kept)
    return Replacement(ctx, change, added, dead)


def measured_delta(
    ctx: GraphContext,
    change: Mapping[ir_graph.Value, ir_graph.Value],
    effect: Delta,
    costs: GraphCosts,
) -> Delta | None:
    """Return the effect of a rewrite with what it adds and removes measured, not predicted."""
    cost = costs.measured_change_cost(Replacement(ctx, change, effect.added, effect.removed))
    return None if cost is None else Delta(effect.added, effect.removed, cost)


def _is_replaced_read(
    ctx: GraphContext,
    change: Mapping[ir_graph.Value, ir_graph.Value],
    kept: Iterable[ir_graph.Node],
) -> bool:
    """True if `kept` depends, at any depth, on a value that `change` replaces and does not keep."""
    gone = {p for old in change if (p := ir_graph.producer(old)) is not None and p in ctx.position}
    first = min((ctx.position[p] for p in gone), default=0)
    work = [n for n in kept if ctx.position[n] > first]
    seen = set(work)
    while work:
        for v in work.pop().inputs:
            p = None if v is None else ir_graph.producer(v)
            if p is None or p in seen or ctx.position.get(p, -1) < first:
                continue
            if v in change:
                return True
            seen.add(p)
            work.append(p)
    return False


def _added_nodes(
    members: Container[ir_graph.Node], change: Mapping[ir_graph.Value, ir_graph.Value]
) -> tuple[ir_graph.Node, ...]:
    found: dict[ir_graph.Node, None] = {}
    stack = [p for new in change.values() if (p := ir_graph.producer(new)) is not None]
    while stack:
        n = stack.pop()
        if n in members or n in found:
            continue
        found[n] = None
        stack.extend(
            p for i in n.inputs if i is not None and (p := ir_graph.producer(i)) is not None
        )
    return tuple(found)


def _dead_nodes(
    ctx: GraphContext,
    change: Mapping[ir_graph.Value, ir_graph.Value],
    kept: Container[ir_graph.Node],
) -> tuple[ir_graph.Node, ...]:
    """Return the nodes without readers once the keys of `change` are replaced."""
    left: dict[ir_graph.Node, int] = {}
    dead: dict[ir_graph.Node, None] = {}
    stack: list[ir_graph.Node] = []

    def drop(value: ir_graph.Value, readers: int) -> None:
        n = ir_graph.producer(value)
        if n is None:
            return
        if n not in left:
            left[n] = sum(_reader_count(ctx, r) for r in ir_graph.results(n))
        left[n] -= readers
        if left[n] <= 0 and n not in kept and n not in dead:
            dead[n] = None
            stack.append(n)

    for old in change:
        drop(old, _reader_count(ctx, old))
    while stack:
        for v in dict.fromkeys(stack.pop().inputs):
            if v is not None:
                drop(v, 1)
    return tuple(dead)


def _reader_count(ctx: GraphContext, v: ir_graph.Value) -> int:
    """Return how many nodes read `v`, plus one if it is an output."""
    return len(ctx.users.get(v, ())) + (v in ctx.outputs)


def apply_together(
    graph: ir_graph.Graph, changes: Sequence[Mapping[ir_graph.Value, ir_graph.Value]]
) -> ir_graph.Graph:
    """Return `graph` with several rewrites applied; raises Cycle if they are incompatible."""
    if len(changes) == 1:
        return ir_graph.replace(graph, changes[0])
    return replace_all(graph, {old: new for c in changes for old, new in c.items()})
