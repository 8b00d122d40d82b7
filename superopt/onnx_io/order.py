"""The order in which nodes are written: the file's order where possible."""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heappop, heappush

from superopt.ir import graph as g
from superopt.onnx_io.follow import sizes_in, sizes_of


class Circular(ValueError):
    """Nodes depend on each other's sizes."""


def ordered(
    graph: g.Graph, born: Mapping[str, g.Node], position: Mapping[g.Node, int]
) -> list[g.Node]:
    """Return all nodes in topological order, else by `positions`; new nodes come as early as
    possible.

    A node with a data-dependent size (`size_producers`) in its attributes follows the opaque node
    that produces the size, which is written even if nothing else reads it. Raises CircularSizes if
    that is impossible.
    """
    needs = _needs(graph, born)
    users: dict[g.Node, list[g.Node]] = {}
    missing: dict[g.Node, int] = {}
    place: dict[g.Node, int] = {}
    ready: list[tuple[int, int, g.Node]] = []
    number = {n: i for i, n in enumerate(needs)}

    def push(n: g.Node) -> None:
        before = (place[p] for p in needs[n])
        place[n] = position[n] if n in position else max(before, default=-1)
        heappush(ready, (place[n], number[n], n))

    for n, before in needs.items():
        missing[n] = len(before)
        for p in before:
            users.setdefault(p, []).append(n)
    for n, count in missing.items():
        if not count:
            push(n)
    order: list[g.Node] = []
    while ready:
        *_, n = heappop(ready)
        order.append(n)
        for user in users.get(n, ()):
            missing[user] -= 1
            if not missing[user]:
                push(user)
    if len(order) < len(needs):
        stuck = next(n for n in needs if missing[n])
        raise Circular(f"{stuck} needs a size that is known only from a later node's result")
    return order


def _needs(graph: g.Graph, born: Mapping[str, g.Node]) -> dict[g.Node, list[g.Node]]:
    """Return for each node its predecessors: the producers of its operands and of its sizes."""
    now = {n.attrs: n for n in g.nodes(graph) if n.op.opaque}  # rewriting may have rebuilt them
    needs: dict[g.Node, list[g.Node]] = {}
    todo = g.nodes(graph)
    while todo:
        more: dict[g.Node, None] = {}
        for n in todo:
            before = {p: None for v in n.inputs if v is not None and (p := g.producer(v))}
            for name in _hidden(n, born) if born else ():
                teller = now.setdefault(born[name].attrs, born[name])
                before[teller] = None
                more[teller] = None
            needs[n] = list(before)
        todo = [n for n in g.nodes([g.item(t, 0) for t in more]) if n not in needs]
    return needs


def _hidden(n: g.Node, born: Mapping[str, g.Node]) -> frozenset[str]:
    """Return the sizes in the attributes of `n` that an opaque node produces and no operand has."""
    if n.op.opaque:
        return frozenset()
    said = frozenset().union(*(sizes_of(a) for _, a in n.attrs)) & born.keys()
    return said - frozenset().union(*(sizes_in(v.type) for v in n.inputs if v is not None))
