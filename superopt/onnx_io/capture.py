"""Values that the subgraphs of If, Loop and Scan read from outside."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as oir


def subgraphs(n: oir.Node) -> Iterator[oir.Graph]:
    """The graphs among a node's attributes."""
    for a in n.attributes.values():
        if a.is_ref():
            continue
        if a.type == oir.AttributeType.GRAPH:
            yield a.as_graph()
        elif a.type == oir.AttributeType.GRAPHS:
            yield from a.as_graphs()


def captured(n: oir.Node) -> list[oir.Value]:
    """Values that the node's subgraphs (nested ones included) read and do not define, in order."""
    found: dict[oir.Value, None] = {}
    own: set[oir.Value] = set()
    used: list[oir.Value] = []
    stack = list(subgraphs(n))
    while stack:
        graph = stack.pop()
        own.update(graph.inputs)
        own.update(graph.initializers.values())
        for inner in graph:
            own.update(inner.outputs)
            used.extend(v for v in inner.inputs if v is not None)
            stack.extend(subgraphs(inner))
        used.extend(graph.outputs)
    for v in used:
        if v not in own:
            found[v] = None
    return list(found)


def inner_names(n: oir.Node) -> set[str]:
    """Every name that the node's subgraphs define: no outer value may take one of them."""
    names: set[str] = set()
    stack = list(subgraphs(n))
    while stack:
        graph = stack.pop()
        names.update(v.name for v in graph.inputs if v.name)
        names.update(graph.initializers)
        for inner in graph:
            names.update(v.name for v in inner.outputs if v.name)
            stack.extend(subgraphs(inner))
    return names


def clone_node(
    n: oir.Node, inputs: list[oir.Value | None], outer: dict[oir.Value, oir.Value]
) -> oir.Node:
    """A copy of `n` that reads `inputs`, its subgraphs reading `outer[v]` where they read v."""
    attributes: list[oir.Attr] = []
    for key, a in n.attributes.items():
        if a.is_ref():
            attributes.append(a)
        elif a.type == oir.AttributeType.GRAPH:
            attributes.append(oir.AttrGraph(key, _clone(a.as_graph(), outer)))
        elif a.type == oir.AttributeType.GRAPHS:
            attributes.append(oir.AttrGraphs(key, [_clone(s, outer) for s in a.as_graphs()]))
        else:
            attributes.append(a)
    return oir.Node(
        n.domain,
        n.op_type,
        inputs,
        attributes,
        overload=n.overload,
        num_outputs=len(n.outputs),
        name=n.name,
        doc_string=n.doc_string,
        metadata_props=dict(n.metadata_props),
    )


def _clone(graph: oir.Graph, outer: dict[oir.Value, oir.Value]) -> oir.Graph:
    copy = graph.clone(allow_outer_scope_values=True)
    stack = [copy]
    while stack:
        current = stack.pop()
        for inner in current:
            for i, v in enumerate(inner.inputs):
                if v is not None and v in outer:
                    inner.replace_input_with(i, outer[v])
            stack.extend(subgraphs(inner))
        for i, v in enumerate(current.outputs):
            if v in outer:
                current.outputs[i] = outer[v]
    return copy
