"""Topological sort of nodes. ONNX requires it; ONNX Runtime sorts by itself."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from heapq import heappop, heappush

import onnx

from superopt.onnx_io.read.protos import (
    Body,
    all_bodies,
    nested_bodies,
    node_subgraphs,
    replace_nodes,
)


def sort_nodes(model: onnx.ModelProto) -> bool:
    """Sort the nodes of every body topologically, in place.

    Returns whether anything changed. Bodies with a cycle are not changed.
    """
    changed = [_sort_body(place.body) for place in all_bodies(model)]
    return any(changed)


def _sort_body(body: Body) -> bool:
    nodes = list(body.node)
    makes = {name: n for n, node in enumerate(nodes) for name in node.output if name}
    if all(makes.get(name, -1) < n for n, node in enumerate(nodes) for name in _read_names(node)):
        return False
    order = topological_order([{makes[r] for r in _read_names(n) if r in makes} for n in nodes])
    if order is None:
        return False
    replace_nodes(body, (nodes[n] for n in order))
    return True


def topological_order(operands: Sequence[Collection[int]]) -> list[int] | None:
    """The least order of numbers, each behind its operands; None where some wait for each other."""
    users: list[list[int]] = [[] for _ in operands]
    waiting = [len(some) for some in operands]
    for n, some in enumerate(operands):
        for operand in some:
            users[operand].append(n)
    ready = [n for n, count in enumerate(waiting) if count == 0]  # sorted, and so a heap
    out = []
    while ready:
        out.append(heappop(ready))
        for user in users[out[-1]]:
            waiting[user] -= 1
            if waiting[user] == 0:
                heappush(ready, user)
    return out if len(out) == len(operands) else None


def _read_names(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the names that the node and its subgraphs read."""
    yield from node.input
    for place in nested_bodies(node_subgraphs(node, 0)) if node.attribute else ():
        for inner in place.body.node:
            yield from inner.input
        yield from (v.name for v in place.body.output)
