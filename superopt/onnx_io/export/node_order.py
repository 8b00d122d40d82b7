"""The order in which nodes are written: the file's order where possible."""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heappop, heappush

from superopt.ir import graph as ir_graph
from superopt.onnx_io.import_.data_propagation import attr_symbols, type_symbols


class CircularSizes(ValueError):
    """Nodes depend on each other's sizes."""


def write_order(
    graph: ir_graph.Graph,
    size_producers: Mapping[str, ir_graph.Node],
    positions: Mapping[ir_graph.Node, int],
) -> list[ir_graph.Node]:
    """Return all nodes in topological order, else by `positions`; new nodes come as early as
    possible.

    A node with a data-dependent size (`size_producers`) in its attributes follows the opaque node
    that produces the size, which is written even if nothing else reads it. Raises CircularSizes if
    that is impossible.
    """
    needs = _predecessors(graph, size_producers)
    users: dict[ir_graph.Node, list[ir_graph.Node]] = {}
    missing: dict[ir_graph.Node, int] = {}
    place: dict[ir_graph.Node, int] = {}
    ready: list[tuple[int, int, ir_graph.Node]] = []
    number = {n: i for i, n in enumerate(needs)}

    def push(n: ir_graph.Node) -> None:
        before = (place[p] for p in needs[n])
        place[n] = positions[n] if n in positions else max(before, default=-1)
        heappush(ready, (place[n], number[n], n))

    for n, before in needs.items():
        missing[n] = len(before)
        for p in before:
            users.setdefault(p, []).append(n)
    for n, count in missing.items():
        if not count:
            push(n)
    order: list[ir_graph.Node] = []
    while ready:
        *_, n = heappop(ready)
        order.append(n)
        for user in users.get(n, ()):
            missing[user] -= 1
            if not missing[user]:
                push(user)
    if len(order) < len(needs):
        stuck = next(n for n in needs if missing[n])
        raise CircularSizes(f"{stuck} needs a size that is known only from a later node's result")
    return order


def _predecessors(
    graph: ir_graph.Graph, size_producers: Mapping[str, ir_graph.Node]
) -> dict[ir_graph.Node, list[ir_graph.Node]]:
    """Return for each node its predecessors: the producers of its operands and of its sizes."""
    now = {
        n.attrs: n for n in ir_graph.nodes(graph) if n.op.opaque
    }  # rewriting may have rebuilt them
    needs: dict[ir_graph.Node, list[ir_graph.Node]] = {}
    todo = ir_graph.nodes(graph)
    while todo:
        more: dict[ir_graph.Node, None] = {}
        for n in todo:
            before = {p: None for v in n.inputs if v is not None and (p := ir_graph.producer(v))}
            for name in _required_sizes(n, size_producers) if size_producers else ():
                teller = now.setdefault(size_producers[name].attrs, size_producers[name])
                before[teller] = None
                more[teller] = None
            needs[n] = list(before)
        todo = [n for n in ir_graph.nodes([ir_graph.result(t, 0) for t in more]) if n not in needs]
    return needs


def _required_sizes(
    n: ir_graph.Node, size_producers: Mapping[str, ir_graph.Node]
) -> frozenset[str]:
    """Return the sizes in the attributes of `n` that an opaque node produces and no operand has."""
    if n.op.opaque:
        return frozenset()
    said = frozenset().union(*(attr_symbols(a) for _, a in n.attrs)) & size_producers.keys()
    return said - frozenset().union(*(type_symbols(v.type) for v in n.inputs if v is not None))
