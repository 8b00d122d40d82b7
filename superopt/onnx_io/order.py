"""The order in which nodes are written: the file's own as far as it can be."""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heappop, heappush

from superopt.ir import graph as g
from superopt.onnx_io.follow import sizes_in, sizes_of


class Circular(ValueError):
    """Nodes need each other's sizes."""


def ordered(
    graph: g.Graph, born: Mapping[str, g.Node], position: Mapping[g.Node, int]
) -> list[g.Node]:
    """All nodes of the graph, operands first, otherwise by `position`; new ones as early as can be.

    A node whose attributes have a size that only an opaque node's result tells (`born`) comes after
    that node, which is written for it even where nothing else reads it. Raises Circular where that
    cannot be.
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
    """For each node the nodes that come before it: its operands' and those that tell its sizes."""
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
    """Sizes in the attributes of `n` that an opaque node tells, and no operand of `n`."""
    if n.op.opaque:
        return frozenset()
    said = frozenset().union(*(sizes_of(a) for _, a in n.attrs)) & born.keys()
    return said - frozenset().union(*(sizes_in(v.type) for v in n.inputs if v is not None))
