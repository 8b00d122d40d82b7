"""Nodes after what they read: onnxruntime sorts those of a model itself, ONNX wants them sorted."""

from __future__ import annotations

from collections.abc import Iterator

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
    import networkx as nx  # it takes 0.15 s to import, and most models are sorted

    found = nx.DiGraph()
    found.add_nodes_from(range(len(nodes)))
    found.add_edges_from(
        (makes[name], n) for n, node in enumerate(nodes) for name in _reads(node) if name in makes
    )
    try:
        order = list(nx.lexicographical_topological_sort(found))
    except nx.NetworkXUnfeasible:
        return False
    with_nodes(body, (nodes[n] for n in order))
    return True


def _reads(node: onnx.NodeProto) -> Iterator[str]:
    """What the node reads, and what its subgraphs do."""
    yield from node.input
    for place in descend(subgraphs_of(node, 0)) if node.attribute else ():
        for inner in place.body.node:
            yield from inner.input
        yield from (v.name for v in place.body.output)
