"""Nodes after what they read: onnxruntime sorts those of a model itself, ONNX wants them sorted."""

from __future__ import annotations

from collections.abc import Iterator

import networkx as nx
import onnx

from superopt.onnx_io.protos import Body, bodies, descend, subgraphs_of, with_nodes
from superopt.onnx_io.source import Source


def sorted_nodes(source: Source) -> Source | None:
    """The model with each node behind those that it reads, and else as it was; None where nothing
    changes, or nodes wait for each other."""
    model = source.skeleton.proto()
    try:
        changed = [_sort(place.body) for place in bodies(model)]
    except nx.NetworkXUnfeasible:
        return None
    if not any(changed):
        return None
    return source.instead(model)


def _sort(body: Body) -> bool:
    """Raises NetworkXUnfeasible for a cycle."""
    nodes = list(body.node)
    makes = {name: n for n, node in enumerate(nodes) for name in node.output if name}
    found = nx.DiGraph()
    found.add_nodes_from(range(len(nodes)))
    found.add_edges_from(
        (makes[name], n) for n, node in enumerate(nodes) for name in _reads(node) if name in makes
    )
    order = list(nx.lexicographical_topological_sort(found))
    if order == list(range(len(nodes))):
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
