"""Iterate over a ModelProto: every body of nodes, tensor and declared type.

The walks do not recurse, since the nesting depth of an untrusted model is unbounded.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import onnx

from superopt import guard

ModelProto = onnx.ModelProto
Body: TypeAlias = onnx.GraphProto | onnx.FunctionProto


class NamedBody(NamedTuple):
    """A body of nodes: the main graph, a local function, or a subgraph attribute."""

    body: Body
    name: str  # for messages: "the graph", "function 'f'", "then_branch of node 'if_1' (If)"
    depth: int  # subgraphs around it


class StoredTensor(NamedTuple):
    """A tensor with data."""

    tensor: onnx.TensorProto
    name: str  # for messages
    dense: bool  # false inside a sparse tensor or a list of tensors


def node_label(node: onnx.NodeProto) -> str:
    """Return a label for a node in messages: its name, else its first output."""
    if node.name:
        return f"{node.name!r} ({node.op_type})"
    produced = next((output for output in node.output if output), "")
    return f"of {produced!r} ({node.op_type})" if produced else f"({node.op_type})"


def top_level_bodies(model: onnx.ModelProto) -> list[NamedBody]:
    """Return the main graph and the local functions."""
    functions = [NamedBody(f, f"function {f.name!r}", 0) for f in model.functions]
    return [NamedBody(model.graph, "the graph", 0), *functions]


def all_bodies(model: onnx.ModelProto) -> Iterator[NamedBody]:
    """Yield the main graph, the local functions, and all their subgraphs."""
    return nested_bodies(top_level_bodies(model))


def nested_bodies(outermost: Iterable[NamedBody]) -> Iterator[NamedBody]:
    """Yield these bodies and their subgraphs at any depth.

    Raises OutOfTime between two of them if the time of the call is over."""
    todo = list(outermost)
    while todo:
        guard.check_time("reading a model")
        place = todo.pop()
        yield place
        for node in place.body.node:
            if node.attribute:
                todo += node_subgraphs(node, place.depth)


def node_subgraphs(node: onnx.NodeProto, depth: int) -> list[NamedBody]:
    """Return the subgraphs in the attributes of a node that is inside `depth` subgraphs."""
    found = []
    for attribute in node.attribute:
        graphs = [attribute.g] if attribute.HasField("g") else []
        for graph in (*graphs, *attribute.graphs):
            found.append(
                NamedBody(graph, f"{attribute.name} of node {node_label(node)}", depth + 1)
            )
    return found


def replace_nodes(body: Body, nodes: Iterable[onnx.NodeProto]) -> None:
    """Replace the nodes of a body; the new nodes may be some of the old ones."""
    copies = []
    for node in nodes:
        copies.append(onnx.NodeProto())
        copies[-1].CopyFrom(node)
    del body.node[:]
    body.node.extend(copies)


def stored_tensors(model: onnx.ModelProto) -> Iterator[StoredTensor]:
    """Yield initializers, dense and sparse, and tensor attributes."""
    for place in all_bodies(model):
        if isinstance(place.body, onnx.GraphProto):
            for tensor in place.body.initializer:
                yield StoredTensor(tensor, f"initializer {tensor.name!r}", True)
            for sparse in place.body.sparse_initializer:
                yield from _sparse_tensors(sparse, f"sparse initializer {sparse.values.name!r}")
        else:
            for attribute in place.body.attribute_proto:
                yield from _attribute_tensors(attribute, place.name)
        for node in place.body.node:
            for attribute in node.attribute:
                yield from _attribute_tensors(attribute, f"node {node_label(node)}")


def _attribute_tensors(attribute: onnx.AttributeProto, owner: str) -> Iterator[StoredTensor]:
    if attribute.HasField("t"):
        yield StoredTensor(attribute.t, f"attribute {attribute.name!r} of {owner}", True)
    for tensor in attribute.tensors:
        yield StoredTensor(tensor, f"attribute {attribute.name!r} of {owner}", False)
    if attribute.HasField("sparse_tensor"):
        yield from _sparse_tensors(
            attribute.sparse_tensor, f"attribute {attribute.name!r} of {owner}"
        )
    for sparse in attribute.sparse_tensors:
        yield from _sparse_tensors(sparse, f"attribute {attribute.name!r} of {owner}")


def _sparse_tensors(sparse: onnx.SparseTensorProto, name: str) -> Iterator[StoredTensor]:
    yield StoredTensor(sparse.values, f"the values of {name}", False)
    if sparse.HasField("indices"):
        yield StoredTensor(sparse.indices, f"the indices of {name}", False)


def declared_types(
    model: onnx.ModelProto, *, subgraphs: bool = True
) -> Iterator[tuple[onnx.TypeProto, str]]:
    """Yield every declared type of a value, decomposed into tensor types, with a label of the
    value."""
    for place in all_bodies(model) if subgraphs else top_level_bodies(model):
        infos = [(info, "value") for info in place.body.value_info]
        if isinstance(place.body, onnx.GraphProto):
            infos += [(info, "input") for info in place.body.input]
            infos += [(info, "output") for info in place.body.output]
        for info, role in infos:
            for part in _component_types(info.type):
                yield part, f"{role} {info.name!r}"


def _component_types(whole: onnx.TypeProto) -> Iterator[onnx.TypeProto]:
    todo = [whole]
    while todo:
        part = todo.pop()
        yield part
        match part.WhichOneof("value"):
            case "sequence_type":
                todo.append(part.sequence_type.elem_type)
            case "optional_type":
                todo.append(part.optional_type.elem_type)
            case "map_type":
                todo.append(part.map_type.value_type)
            case _:
                pass


def load_proto(path: Path) -> onnx.ModelProto:
    """Load the model in a file, external data included."""
    return onnx.load(path)


def first_non_utf8(model: onnx.ModelProto) -> bytes | None:
    """Return a string field that is not UTF-8, which protobuf returns as bytes; else None."""
    todo: list[Any] = [model]  # messages of any type
    try:
        while todo:
            for field, value in todo.pop().ListFields():
                if field.type == field.TYPE_MESSAGE:
                    todo += value if _is_repeated(value) else [value]
                elif field.type == field.TYPE_STRING:
                    for text in value if _is_repeated(value) else [value]:
                        if isinstance(text, bytes):
                            return text
    except UnicodeDecodeError as error:  # what other versions of protobuf do
        return error.object
    return None


def _is_repeated(value: object) -> bool:
    return not isinstance(value, str | bytes) and hasattr(value, "__len__")
