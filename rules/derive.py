"""Is the equality of two graphs a consequence of rules? A chain of rewrites from both sides.

Breadth-first from either graph in turns, until some graph is reached from both. Rules are taken in
the directions in which they are given; a graph that two chains reach is equal to both ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from superopt.ir import graph as g
from superopt.rules.build import Refusal, rewrite
from superopt.rules.context import context
from superopt.rules.index import Index
from superopt.rules.make import make
from superopt.rules.plan import NARY


@dataclass(frozen=True, slots=True)
class Bounds:
    """steps: rewrites in a chain. grow: nodes more than the larger graph has. graphs: visited.
    forward: from the first graph only, each rule from left to right, as a search would go."""

    steps: int = 8
    grow: int = 3
    graphs: int = 20_000
    seconds: float = 60.0
    forward: bool = False


@dataclass(frozen=True, slots=True)
class Link:
    """One rewrite: the rule, the graph before and the graph after."""

    rule: str
    before: g.Graph
    after: g.Graph


@dataclass(frozen=True, slots=True)
class Derived:
    """Chains from the first graph and from the second to one that both reach; both are empty for
    graphs that are the same."""

    forth: tuple[Link, ...]
    back: tuple[Link, ...]
    visited: int


@dataclass(frozen=True, slots=True)
class Underived:
    """No chain was found: why the search ended, and how many graphs it visited."""

    reason: str
    visited: int


Roots = tuple[g.Value, ...]


def derive(
    a: g.Graph,
    b: g.Graph,
    index: Index,
    bounds: Bounds,
    stop: Callable[[], bool] = lambda: False,
) -> Derived | Underived:
    """A chain of rewrites between two graphs over the same inputs."""
    end = time.monotonic() + bounds.seconds
    order = _Order({}, {})
    a, b = order.graph(a), order.graph(b)
    if a.outputs == b.outputs:
        return Derived((), (), 0)
    most = max(len(g.nodes(a)), len(g.nodes(b))) + bounds.grow
    seen: tuple[dict[Roots, Link | None], ...] = ({a.outputs: None}, {b.outputs: None})
    fronts = [[a], [] if bounds.forward else [b]]
    depth = [0, 0]
    while sum(depth) < bounds.steps and any(fronts):
        side = 0 if fronts[0] and (depth[0] <= depth[1] or not fronts[1]) else 1
        fresh: list[g.Graph] = []
        for graph in fronts[side]:
            for link in _rewrites(graph, index, most, order):
                roots = link.after.outputs
                if roots in seen[side]:
                    continue
                seen[side][roots] = link
                if roots in seen[1 - side]:
                    chains = [_chain(seen[n], roots) for n in (0, 1)]
                    return Derived(chains[0], chains[1], _visited(seen))
                fresh.append(link.after)
            if _visited(seen) >= bounds.graphs:
                return Underived("the limit of graphs was reached", _visited(seen))
            if time.monotonic() >= end or stop():
                return Underived("the time was used up", _visited(seen))
        fronts[side] = fresh
        depth[side] += 1
    reason = "the limit of steps was reached" if any(fronts) else "nothing more can be reached"
    return Underived(reason, _visited(seen))


def _visited(seen: tuple[dict[Roots, Link | None], ...]) -> int:
    return sum(map(len, seen))


@dataclass(frozen=True, slots=True)
class _Order:
    """One order for operands that commute, and no join within a join, so that graphs which differ
    in that only are the same."""

    numbers: dict[g.Value, int]
    known: dict[g.Node, g.Node]

    def graph(self, graph: g.Graph) -> g.Graph:
        for n in g.nodes(graph):
            if n not in self.known:
                self.known[n] = self.node(n)
        return g.Graph(graph.inputs, tuple(map(self.value, graph.outputs)))

    def node(self, n: g.Node) -> g.Node:
        inputs = tuple(None if v is None else self.value(v) for v in n.inputs)
        for v in inputs:
            if v is not None:
                self.numbers.setdefault(v, len(self.numbers))
        if n.op.name in NARY:
            inputs = make(n.op, inputs, dict(n.attrs)).inputs  # as right sides are made
        sums = n.op.name in ("Sum", "Mean") and len(inputs) > 2  # these are taken from the left
        if "commutative" in n.op.laws and not sums and None not in inputs:
            inputs = tuple(sorted(inputs, key=lambda v: self.numbers[v]))  # type: ignore[index]
        return n if inputs == n.inputs else g.intern_node(n.op, inputs, n.attrs, n.types)

    def value(self, v: g.Value) -> g.Value:
        p = g.producer(v)
        if p is None:
            return v
        made = self.known[p]
        return g.item(made, v.index) if isinstance(v, g.Item) else made


def _rewrites(graph: g.Graph, index: Index, most: int, order: _Order) -> Iterator[Link]:
    ctx = context(graph)
    for match in index.matches(ctx):
        change = rewrite(match, ctx)
        if isinstance(change, Refusal) or all(old is new for old, new in change.items()):
            continue
        after = order.graph(g.replace(graph, change, ctx.position))
        if len(g.nodes(after)) <= most:
            yield Link(match.rule.name, graph, after)


def _chain(seen: dict[Roots, Link | None], roots: Roots) -> tuple[Link, ...]:
    out: list[Link] = []
    link = seen[roots]
    while link is not None:
        out.append(link)
        link = seen[link.before.outputs]
    return tuple(reversed(out))
