"""Subgraphs of If, Loop and Scan: captured values, and copies with other captured values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace

import onnx_ir as oir


def subgraphs(n: oir.Node) -> Iterator[oir.Graph]:
    """Yield the graphs among a node's attributes."""
    for a in n.attributes.values():
        if a.is_ref():
            continue
        if a.type == oir.AttributeType.GRAPH:
            yield a.as_graph()
        elif a.type == oir.AttributeType.GRAPHS:
            yield from a.as_graphs()


def nested_subgraphs(n: oir.Node) -> Iterator[oir.Graph]:
    """Yield all subgraphs of a node, nested ones included."""
    stack = list(subgraphs(n))
    while stack:
        graph = stack.pop()
        yield graph
        for inner in graph:
            stack.extend(subgraphs(inner))


def captured_values(n: oir.Node) -> list[oir.Value]:
    """Return the values that the node's subgraphs (nested ones included) read but do not define, in
    order."""
    own: set[oir.Value] = set()
    used: dict[oir.Value, None] = {}
    for graph in nested_subgraphs(n):
        own.update(_defined_values(graph))
        for inner in graph:
            used.update((v, None) for v in inner.inputs if v is not None)
        used.update((v, None) for v in graph.outputs)
    return [v for v in used if v not in own]


def _defined_values(graph: oir.Graph) -> Iterator[oir.Value]:
    yield from graph.inputs
    yield from graph.initializers.values()
    for n in graph:
        yield from n.outputs


def subgraph_names(n: oir.Node) -> set[str]:
    """Return every name that the node's subgraphs define. A new outer value must not use one of
    them."""
    return {v.name for graph in nested_subgraphs(n) for v in _defined_values(graph) if v.name}


def rename_subgraph_values(n: oir.Node, earlier_names: Set[str], reserved_names: Set[str]) -> None:
    """Rename values inside the node's subgraphs whose names occur in `earlier_names`.

    A file may use a name inside a subgraph and later outside; in another node order that is an
    error. New names avoid `reserved_names`.
    """
    taken = {*reserved_names, *subgraph_names(n)}
    for graph in nested_subgraphs(n):
        for v in list(_defined_values(graph)):
            if v.name in earlier_names:
                count = 1
                while f"{v.name}_{count}" in taken:
                    count += 1
                v.name = f"{v.name}_{count}"
                taken.add(v.name)


def clone_node(
    n: oir.Node,
    inputs: Sequence[oir.Value | None],
    outputs: Sequence[oir.Value],
    outer: Mapping[oir.Value, oir.Value],
    value_info_names: Set[str] = frozenset(),
) -> oir.Node:
    """Return a copy of `n` with these inputs and outputs; its subgraphs read outer[v] instead of v.

    Types are written for initializers in `value_info_names`; other initializers of subgraphs drop
    theirs.
    """
    attributes: list[oir.Attr] = []
    for key, a in n.attributes.items():
        if a.is_ref():
            attributes.append(a)
        elif a.type == oir.AttributeType.GRAPH:
            graph = _clone_graph(a.as_graph(), outer, value_info_names)
            attributes.append(oir.AttrGraph(key, graph, doc_string=a.doc_string))
        elif a.type == oir.AttributeType.GRAPHS:
            graphs = [_clone_graph(s, outer, value_info_names) for s in a.as_graphs()]
            attributes.append(oir.AttrGraphs(key, graphs, doc_string=a.doc_string))
        else:
            attributes.append(a)
    return node_like(n, n.op_type, inputs, attributes, outputs)


def node_like(
    n: oir.Node,
    op_type: str,
    inputs: Sequence[oir.Value | None],
    attributes: Sequence[oir.Attr],
    outputs: Sequence[oir.Value],
) -> oir.Node:
    """Return a node that keeps the name, documentation and metadata of `n`."""
    made = oir.Node(
        n.domain,
        op_type,
        inputs,
        attributes,
        overload=n.overload,
        outputs=outputs,
        name=n.name or "",
        doc_string=n.doc_string,
        metadata_props=dict(n.metadata_props),
    )
    if n.device_configurations:  # they name values, which now are others
        moved = dict(zip((*n.inputs, *n.outputs), (*inputs, *outputs), strict=False))
        made.device_configurations = tuple(
            replace(
                c,
                sharding_specs=tuple(
                    replace(s, value=moved[s.value])
                    for s in c.sharding_specs
                    if s.value in moved and moved[s.value] is not None
                ),
            )
            for c in n.device_configurations
        )
    return made


def _clone_graph(
    graph: oir.Graph, outer: Mapping[oir.Value, oir.Value], value_info_names: Set[str]
) -> oir.Graph:
    copy = graph.clone(allow_outer_scope_values=True)
    stack = [copy]
    while stack:
        current = stack.pop()
        for weight in current.initializers.values():
            if weight.name not in value_info_names and not weight.is_graph_input():
                weight.type = weight.shape = None
        for inner in current:
            for i, v in enumerate(inner.inputs):
                if v is not None and v in outer:
                    inner.replace_input_with(i, outer[v])
            stack.extend(subgraphs(inner))
        for i, out in enumerate(current.outputs):
            if out in outer:
                current.outputs[i] = outer[out]
    return copy
