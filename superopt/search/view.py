"""The change in cost of a rewrite, and applying several rewrites together."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from superopt.cost.fusion import FUSIBLE
from superopt.cost.model import Costs
from superopt.ir import graph as g
from superopt.ir.substitute import replace_all
from superopt.rules.context import GraphContext


@dataclass(frozen=True, slots=True)
class Delta:
    """The nodes that a rewrite adds and removes, and the change in microseconds."""

    added: tuple[g.Node, ...]
    dead: tuple[g.Node, ...]
    us: float


def delta(ctx: GraphContext, change: Mapping[g.Value, g.Value], costs: Costs) -> Delta | None:
    """Return the effect of `change` on the cost of the graph, without building the new graph.

    None if the new nodes use the replaced ones, which then stay: no gain is possible.
    """
    members = ctx.position
    added = _added(members, change)
    kept: set[g.Node] = set()  # nodes of the graph that the new ones read
    for n in added:
        for i in n.inputs:
            p = None if i is None else g.producer(i)
            if p is not None and p in members:
                kept.add(p)
    for new in change.values():
        p = g.producer(new)
        if p is not None and p in members:
            kept.add(p)
    if _read(ctx, change, kept):
        return None
    dead = _dead(ctx, change, kept)
    us = sum(costs.of_nodes(added)) - sum(costs.of_nodes(dead))
    us += _beside(ctx, change, dead, costs) + _weights(ctx, added, dead, costs)
    return Delta(added, dead, us)


def _read(ctx: GraphContext, change: Mapping[g.Value, g.Value], kept: Iterable[g.Node]) -> bool:
    """True if `kept` depends, at any depth, on a value that `change` replaces and does not keep."""
    gone = {p for old in change if (p := g.producer(old)) is not None and p in ctx.position}
    first = min((ctx.position[p] for p in gone), default=0)
    work = [n for n in kept if ctx.position[n] > first]
    seen = set(work)
    while work:
        for v in work.pop().inputs:
            p = None if v is None else g.producer(v)
            if p is None or p in seen or ctx.position.get(p, -1) < first:
                continue
            if v in change:
                return True
            seen.add(p)
            work.append(p)
    return False


def _weights(
    ctx: GraphContext, added: Sequence[g.Node], dead: Sequence[g.Node], costs: Costs
) -> float:
    """Return the change in cost of the graph's distinct weights."""
    read, unread = costs.weights(added), costs.weights(dead)
    if not read and not unread:
        return 0.0
    gone = set(dead)

    def stays(v: g.Value) -> bool:
        return any(u not in gone and not costs.is_constant(u) for u in ctx.users.get(v, ()))

    new = [v for v in read if not any(not costs.is_constant(u) for u in ctx.users.get(v, ()))]
    old = [v for v in unread if v not in read and not stays(v)]
    return sum(map(costs.of_weight, new)) - sum(map(costs.of_weight, old))


def _beside(
    ctx: GraphContext,
    change: Mapping[g.Value, g.Value],
    dead: Container[g.Node],
    costs: Costs,
) -> float:
    """Return the change in cost of the readers of the replaced values, as their fusion changes."""
    us = 0.0
    readers = {u for old in change for u in ctx.users.get(old, ())}
    for u in readers:
        if u.op.name not in FUSIBLE or u in dead:
            continue
        inputs = tuple(None if v is None else change.get(v, v) for v in u.inputs)
        after = g.intern_node(u.op, inputs, u.attrs, u.types)
        us += costs.of_node(after) - costs.of_node(u)
    return us


def _added(members: Container[g.Node], change: Mapping[g.Value, g.Value]) -> tuple[g.Node, ...]:
    found: dict[g.Node, None] = {}
    stack = [p for new in change.values() if (p := g.producer(new)) is not None]
    while stack:
        n = stack.pop()
        if n in members or n in found:
            continue
        found[n] = None
        stack.extend(p for i in n.inputs if i is not None and (p := g.producer(i)) is not None)
    return tuple(found)


def _dead(
    ctx: GraphContext, change: Mapping[g.Value, g.Value], kept: Container[g.Node]
) -> tuple[g.Node, ...]:
    """Return the nodes without readers once the keys of `change` are replaced."""
    left: dict[g.Node, int] = {}
    dead: dict[g.Node, None] = {}
    stack: list[g.Node] = []

    def drop(value: g.Value, readers: int) -> None:
        n = g.producer(value)
        if n is None:
            return
        if n not in left:
            left[n] = sum(_readers(ctx, r) for r in g.results(n))
        left[n] -= readers
        if left[n] <= 0 and n not in kept and n not in dead:
            dead[n] = None
            stack.append(n)

    for old in change:
        drop(old, _readers(ctx, old))
    while stack:
        for v in dict.fromkeys(stack.pop().inputs):
            if v is not None:
                drop(v, 1)
    return tuple(dead)


def _readers(ctx: GraphContext, v: g.Value) -> int:
    """Return how many nodes read `v`, plus one if it is an output."""
    return len(ctx.users.get(v, ())) + (v in ctx.outputs)


def together(graph: g.Graph, changes: Sequence[Mapping[g.Value, g.Value]]) -> g.Graph:
    """Return `graph` with several rewrites applied; raises Cycle if they are incompatible."""
    if len(changes) == 1:
        return g.replace(graph, changes[0])
    return replace_all(graph, {old: new for c in changes for old, new in c.items()})
