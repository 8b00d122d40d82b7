"""Split a model at a node: the nodes before it, and which of their values the rest reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

import onnx

from superopt.onnx_io.import_.data_propagation import is_tracked
from superopt.onnx_io.import_.dtypes import onnx_dtype
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.read.protos import nested_bodies, node_subgraphs, replace_nodes
from superopt.onnx_io.read.source import Source
from superopt.te.expr.node import Expr, Size
from superopt.te.expr.tensor import TensorType


def node_ancestors(nodes: Sequence[onnx.NodeProto], names: Iterable[str]) -> set[int]:
    """Return the positions of the nodes that compute these values."""
    by = {name: k for k, n in enumerate(nodes) for name in n.output if name}
    found: set[int] = set()
    todo = [by[name] for name in names if name in by]
    while todo:
        k = todo.pop()
        if k not in found:
            found.add(k)
            todo += [by[name] for name in read_names(nodes[k]) if name in by]
    return found


def read_names(n: onnx.NodeProto) -> Iterator[str]:
    """Yield the names that a node and its subgraphs read, including names that subgraphs define."""
    yield from (name for name in n.input if name)
    for place in nested_bodies(node_subgraphs(n, 0)):
        for inner in place.body.node:
            yield from (name for name in inner.input if name)
        for v in place.body.output:
            yield v if isinstance(v, str) else v.name


def used_names(nodes: Iterable[onnx.NodeProto]) -> set[str]:
    return {name for n in nodes for name in read_names(n)}


def with_ancestors(
    nodes: Sequence[onnx.NodeProto], producers: Mapping[str, int], names: Sequence[str]
) -> list[str]:
    """Return these values of the prefix and all values that they are computed from there."""
    out = dict.fromkeys(names)
    todo = list(names)
    while todo:
        for name in read_names(nodes[producers[todo.pop()]]):
            if name in producers and name not in out:
                out[name] = None
                todo.append(name)
    return list(out)


def value_types(
    source: Source, nodes: Sequence[onnx.NodeProto], names: Sequence[str]
) -> dict[str, TensorType]:
    model = import_model(prefix_model(source, nodes, names))
    return {name: v.type for name, v in zip(names, model.graph.outputs, strict=True)}


def forwarded_values(
    nodes: Sequence[onnx.NodeProto],
    producers: Mapping[str, int],
    wanted_names: Sequence[str],
    types: Mapping[str, TensorType],
    output_names: Set[str],
) -> tuple[tuple[str, ...], set[int]]:
    """Return the prefix values to forward to the rest of the model, and the positions of nodes that
    the rest recomputes: small integer tensors, which shapes may depend on. wanted_names: values
    that the rest reads."""
    passed, again = dict.fromkeys(name for name in wanted_names if name in output_names), set[int]()
    todo = [name for name in wanted_names if name not in output_names]
    while todo:
        name = todo.pop()
        if name in passed:
            continue
        if not is_tracked(types[name]):
            passed[name] = None
        elif (k := producers[name]) not in again:
            again.add(k)
            todo += [source for source in read_names(nodes[k]) if source in producers]
    return tuple(passed), again


def prefix_model(source: Source, nodes: Sequence[onnx.NodeProto], outputs: Sequence[str]) -> Source:
    proto = source.skeleton.new_proto()
    replace_nodes(proto.graph, nodes)
    del proto.graph.output[:]
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
    prune_inputs(proto.graph, used_names(nodes))
    return source.with_proto(proto)


def prune_inputs(graph: onnx.GraphProto, used: set[str]) -> None:
    """Remove unused inputs; keep inputs that are initializers."""
    weights = {w.name for w in graph.initializer}
    kept = [v for v in graph.input if v.name in used or v.name in weights]
    if len(kept) < len(graph.input):
        copies = [onnx.ValueInfoProto.FromString(v.SerializeToString()) for v in kept]
        del graph.input[:]
        graph.input.extend(copies)


def value_info(name: str, t: TensorType) -> onnx.ValueInfoProto:
    """Return the description of an input. Sizes that are formulas have no name."""
    assert t.dtype is not None
    names = (d.name if isinstance(d, Size) else d for d in t.shape or ())
    dims = None if t.shape is None else [None if isinstance(d, Expr) else d for d in names]
    return onnx.helper.make_tensor_value_info(name, int(onnx_dtype(t.dtype)), dims)
