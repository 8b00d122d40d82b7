"""A graph as the search sees it, and what a rewrite would change in its cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from superopt.cost.model import Costs
from superopt.ir import graph as g


@dataclass(frozen=True, slots=True)
class View:
    """A graph, its nodes in order, and how often each value is read (outputs count)."""

    graph: g.Graph
    order: tuple[g.Node, ...]
    members: frozenset[g.Node]
    uses: Mapping[g.Value, int]


def view(graph: g.Graph) -> View:
    """What the search needs to know of `graph`."""
    order = tuple(g.nodes(graph))
    uses: dict[g.Value, int] = {}
    for n in order:
        for v in n.inputs:
            if v is not None:
                uses[v] = uses.get(v, 0) + 1
    for v in graph.outputs:
        uses[v] = uses.get(v, 0) + 1
    return View(graph, order, frozenset(order), uses)


@dataclass(frozen=True, slots=True)
class Delta:
    """What a rewrite adds and removes, in nodes and microseconds."""

    added: tuple[g.Node, ...]
    dead: tuple[g.Node, ...]
    us: float


def delta(v: View, change: Mapping[g.Value, g.Value], costs: Costs) -> Delta:
    """The effect of `change` on the cost of `v.graph`, without building the new graph."""
    added = _added(v, change)
    kept: set[g.Node] = set()  # nodes of the graph that the new ones read
    for n in added:
        for i in n.inputs:
            p = None if i is None else g.producer(i)
            if p is not None and p in v.members:
                kept.add(p)
    for new in change.values():
        p = g.producer(new)
        if p is not None and p in v.members:
            kept.add(p)
    dead = _dead(v, change, kept)
    us = sum(costs.of_nodes(added)) - sum(costs.of_nodes(dead))
    return Delta(added, dead, us)


def _added(v: View, change: Mapping[g.Value, g.Value]) -> tuple[g.Node, ...]:
    found: dict[g.Node, None] = {}
    stack = [p for new in change.values() if (p := g.producer(new)) is not None]
    while stack:
        n = stack.pop()
        if n in v.members or n in found:
            continue
        found[n] = None
        stack.extend(p for i in n.inputs if i is not None and (p := g.producer(i)) is not None)
    return tuple(found)


def _dead(v: View, change: Mapping[g.Value, g.Value], kept: set[g.Node]) -> tuple[g.Node, ...]:
    """Nodes that nobody reads once the keys of `change` are replaced."""
    left: dict[g.Node, int] = {}
    dead: dict[g.Node, None] = {}
    stack: list[g.Node] = []

    def drop(value: g.Value, reads: int) -> None:
        n = g.producer(value)
        if n is None:
            return
        if n not in left:
            left[n] = sum(v.uses.get(r, 0) for r in g.results(n))
        left[n] -= reads
        if left[n] <= 0 and n not in kept and n not in dead:
            dead[n] = None
            stack.append(n)

    for old in change:
        drop(old, v.uses.get(old, 0))
    while stack:
        for i in stack.pop().inputs:
            if i is not None:
                drop(i, 1)
    return tuple(dead)


class Cycle(ValueError):
    """Rewrites that are sound alone would need each other's results."""


def replace_all(graph: g.Graph, change: Mapping[g.Value, g.Value]) -> g.Graph:
    """`graph` with all of `change` applied, also inside the new values.

    Raises Cycle when the rewrites together would need their own results.
    """
    done: dict[g.Value, g.Value] = {}
    open_: set[g.Value] = set()
    for root in graph.outputs:
        stack = [root]
        while stack:
            v = stack[-1]
            if v in done:
                stack.pop()
                continue
            if v in change:
                goal = change[v]
                if goal in done:
                    done[v] = done[goal]
                    open_.discard(v)
                    stack.pop()
                elif v in open_:
                    raise Cycle(str(v))
                else:
                    open_.add(v)
                    stack.append(goal)
                continue
            n = g.producer(v)
            if n is None:
                done[v] = v
                stack.pop()
                continue
            pending = [i for i in n.inputs if i is not None and i not in done]
            if pending:
                if v in open_:
                    raise Cycle(str(v))
                open_.add(v)
                stack.extend(reversed(pending))
                continue
            open_.discard(v)
            inputs = tuple(None if i is None else done[i] for i in n.inputs)
            made = n if inputs == n.inputs else g.intern_node(n.op, inputs, n.attrs, n.types)
            done[v] = g.item(made, v.index) if isinstance(v, g.Item) else made
            stack.pop()
    return g.Graph(graph.inputs, tuple(done[v] for v in graph.outputs))


def together(graph: g.Graph, changes: Sequence[Mapping[g.Value, g.Value]]) -> g.Graph:
    """`graph` with several rewrites of it applied; Cycle where they do not go together."""
    if len(changes) == 1:
        return g.replace(graph, changes[0])
    return replace_all(graph, {old: new for c in changes for old, new in c.items()})
