"""Nodes after what they read: onnxruntime sorts those of a model itself, ONNX wants them sorted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush

import onnx

from superopt.onnx_io.protos import Body, bodies, descend, subgraphs_of, with_nodes
from superopt.onnx_io.source import Source


def sorted_nodes(source: Source) -> Source | None:
    """The model with each node behind those that it reads, and else as it was; None where nothing
    changes, or nodes wait for each other."""
    model = source.skeleton.proto()
    return source.instead(model) if sort_nodes(model) else None


def sort_nodes(model: onnx.ModelProto) -> bool:
    """Put each node of every body behind those that it reads, in place.

    Returns whether anything changed. Nodes that wait for each other stay where they are.
    """
    changed = [_sort(place.body) for place in bodies(model)]
    return any(changed)


def _sort(body: Body) -> bool:
    nodes = list(body.node)
    makes = {name: n for n, node in enumerate(nodes) for name in node.output if name}
    if all(makes.get(name, -1) < n for n, node in enumerate(nodes) for name in _reads(node)):
        return False
    order = _topological_order(
        [{makes[name] for name in _reads(node) if name in makes} for node in nodes]
    )
    if len(order) < len(nodes):
        return False
    with_nodes(body, (nodes[n] for n in order))
    return True


def _topological_order(predecessors: Sequence[set[int]]) -> list[int]:
    """The nodes behind their predecessors; of several that may come next the first one. Nodes of
    cycles, and what is behind these, are left out."""
    successors: dict[int, list[int]] = defaultdict(list)
    missing = [len(some) for some in predecessors]
    for n, some in enumerate(predecessors):
        for before in some:
            successors[before].append(n)
    ready = [n for n, count in enumerate(missing) if not count]
    heapify(ready)
    order = []
    while ready:
        n = heappop(ready)
        order.append(n)
        for after in successors[n]:
            missing[after] -= 1
            if not missing[after]:
                heappush(ready, after)
    return order


def _reads(node: onnx.NodeProto) -> Iterator[str]:
    """What the node reads, and what its subgraphs do."""
    yield from node.input
    for place in descend(subgraphs_of(node, 0)) if node.attribute else ():
        for inner in place.body.node:
            yield from inner.input
        yield from (v.name for v in place.body.output)
