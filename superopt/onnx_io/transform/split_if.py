"""Split a model at an If whose condition is known only at run time. The result is a model that
computes the condition, and for each value of it a model in which the branch replaces the If.

    y = f(If(c(x), then: p(x), else: q(x)))  =>  c(x);  f(p(x));  f(q(x))
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np
import onnx

from superopt.ir import graph as ir_graph
from superopt.onnx_io.import_.data_propagation import is_tracked
from superopt.onnx_io.import_.dtypes import onnx_dtype
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.import_.model import Model
from superopt.onnx_io.read.protos import nested_bodies, node_subgraphs, replace_nodes
from superopt.onnx_io.read.source import Source
from superopt.onnx_io.transform.constant_if import inline_branches, rename_values
from superopt.te.expr.tensor import TensorType


@dataclass(frozen=True, slots=True)
class SplitModel:
    """A model split at its first dynamic If.

    condition: name of the value. prefix: model whose outputs are the condition and `forwarded`,
    values that the branches do not recompute; None if the condition is an input. branches: for each
    value of the condition the rest of the model, a model of the inputs and of `forwarded`. Its
    outputs are those outputs of the original that the prefix does not compute.
    """

    condition: str
    prefix: Source | None
    forwarded: tuple[str, ...]
    branches: Mapping[bool, Source]


def first_dynamic_if(model: Model) -> int | None:
    """Return the file position of the first If whose condition is not constant, or None."""
    found = [
        model.origins[n].position
        for n in ir_graph.nodes(model.graph)
        if n.op.name == "If" and not n.op.domain and n in model.origins
        and not isinstance(n.inputs[0], ir_graph.Constant)
    ]  # fmt: skip
    return min(found, default=None)


def split_at_if(model: Model) -> SplitModel | None:
    """Split the model at its first dynamic If. Return None if there is none, or if a forwarded
    value is not a tensor of a known type.

    Raises ModelError if one of the models is invalid by itself.
    """
    position = first_dynamic_if(model)
    if position is None:
        return None
    source = model.source
    proto = source.skeleton.new_proto()
    nodes = list(proto.graph.node)
    condition = nodes[position].input[0]
    before = _ancestors(nodes, [condition])
    if any(a.g.sparse_initializer for a in nodes[position].attribute):
        return None
    if not before:
        given = next(i for i in model.graph.inputs if i.name == condition)
        at = _IfNode(position, condition, given.type)
        return SplitModel(condition, None, (), _branch_models(source, at, set(), {}))
    made = {name: k for k in before for name in nodes[k].output if name}
    rest = [n for k, n in enumerate(nodes) if k not in before]
    wanted = {v.name for v in proto.graph.output}
    used = _used_names(rest) - {condition}  # of which the arms know the value
    read = [name for name in made if name in wanted or name in used]
    candidates = _with_ancestors(nodes, made, [condition, *read])
    types = _value_types(source, [nodes[k] for k in sorted(before)], candidates)
    passed, again = _forwarded_values(nodes, made, read, types, wanted)
    if any(types[name].dtype is None for name in passed):
        return None
    outputs = tuple(dict.fromkeys((condition, *passed)))
    prefix = _prefix_model(source, [nodes[k] for k in sorted(before)], outputs)
    at = _IfNode(position, condition, types[condition])
    known = {name: types[name] for name in passed}
    return SplitModel(condition, prefix, passed, _branch_models(source, at, before - again, known))


@dataclass(frozen=True, slots=True)
class _IfNode:
    """The file position of an If, and the name and type of its condition."""

    position: int
    condition: str
    type: TensorType

    def condition_value(self, taken: bool) -> np.ndarray:
        """Return the condition's value when the branch `taken` runs."""
        dims = self.type.shape or ()
        return np.full([d for d in dims if isinstance(d, int)], taken)


def _ancestors(nodes: Sequence[onnx.NodeProto], names: Iterable[str]) -> set[int]:
    """Return the positions of the nodes that compute these values."""
    by = {name: k for k, n in enumerate(nodes) for name in n.output if name}
    found: set[int] = set()
    todo = [by[name] for name in names if name in by]
    while todo:
        k = todo.pop()
        if k not in found:
            found.add(k)
            todo += [by[name] for name in _read_names(nodes[k]) if name in by]
    return found


def _read_names(n: onnx.NodeProto) -> Iterator[str]:
    """Yield the names that a node and its subgraphs read, including names that subgraphs define."""
    yield from (name for name in n.input if name)
    for place in nested_bodies(node_subgraphs(n, 0)):
        for inner in place.body.node:
            yield from (name for name in inner.input if name)
        for v in place.body.output:
            yield v if isinstance(v, str) else v.name


def _used_names(nodes: Iterable[onnx.NodeProto]) -> set[str]:
    return {name for n in nodes for name in _read_names(n)}


def _with_ancestors(
    nodes: Sequence[onnx.NodeProto], producers: Mapping[str, int], names: Sequence[str]
) -> list[str]:
    """Return these values of the prefix and all values that they are computed from there."""
    out = dict.fromkeys(names)
    todo = list(names)
    while todo:
        for name in _read_names(nodes[producers[todo.pop()]]):
            if name in producers and name not in out:
                out[name] = None
                todo.append(name)
    return list(out)


def _value_types(
    source: Source, nodes: Sequence[onnx.NodeProto], names: Sequence[str]
) -> dict[str, TensorType]:
    model = import_model(_prefix_model(source, nodes, names))
    return {name: v.type for name, v in zip(names, model.graph.outputs, strict=True)}


def _forwarded_values(
    nodes: Sequence[onnx.NodeProto],
    producers: Mapping[str, int],
    read_names: Sequence[str],
    types: Mapping[str, TensorType],
    output_names: Set[str],
) -> tuple[tuple[str, ...], set[int]]:
    """Return the prefix values to forward to the branches, and the positions of nodes that the
    branches recompute: small integer tensors, which shapes may depend on. read_names: values that
    the branches read."""
    passed, again = dict.fromkeys(name for name in read_names if name in output_names), set[int]()
    todo = [name for name in read_names if name not in output_names]
    while todo:
        name = todo.pop()
        if name in passed:
            continue
        if not is_tracked(types[name]):
            passed[name] = None
        elif (k := producers[name]) not in again:
            again.add(k)
            todo += [source for source in _read_names(nodes[k]) if source in producers]
    return tuple(passed), again


def _prefix_model(
    source: Source, nodes: Sequence[onnx.NodeProto], outputs: Sequence[str]
) -> Source:
    proto = source.skeleton.new_proto()
    replace_nodes(proto.graph, nodes)
    del proto.graph.output[:]
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
    _prune_inputs(proto.graph, _used_names(nodes))
    return source.with_proto(proto)


def _branch_models(
    source: Source, if_node: _IfNode, dropped: Set[int], forwarded: Mapping[str, TensorType]
) -> dict[bool, Source]:
    """Return the model of each branch. dropped: positions of nodes that only the prefix
    computes."""
    out = {}
    for taken in (True, False):
        proto = source.skeleton.new_proto()
        graph = proto.graph
        inline_branches(graph, {if_node.position: taken}, dropped)
        known = f"{if_node.condition}/{taken}"
        for n in graph.node:
            n.output[:] = ["" if name in forwarded else name for name in n.output]  # computed twice
            rename_values(n, {if_node.condition: known})
        graph.initializer.append(
            onnx.numpy_helper.from_array(if_node.condition_value(taken), known)
        )
        kept = [v for v in graph.output if v.name not in forwarded]
        del graph.output[:]
        graph.output.extend(kept)
        used = _used_names(graph.node)
        graph.input.extend(_value_info(name, t) for name, t in forwarded.items() if name in used)
        _prune_inputs(graph, used | {v.name for v in kept})
        out[taken] = source.with_proto(proto)
    return out


def _prune_inputs(graph: onnx.GraphProto, used: set[str]) -> None:
    """Remove unused inputs; keep inputs that are initializers."""
    weights = {w.name for w in graph.initializer}
    kept = [v for v in graph.input if v.name in used or v.name in weights]
    if len(kept) < len(graph.input):
        copies = [onnx.ValueInfoProto.FromString(v.SerializeToString()) for v in kept]
        del graph.input[:]
        graph.input.extend(copies)


def _value_info(name: str, t: TensorType) -> onnx.ValueInfoProto:
    assert t.dtype is not None
    dims = None if t.shape is None else [d if isinstance(d, int) else None for d in t.shape]
    return onnx.helper.make_tensor_value_info(name, int(onnx_dtype(t.dtype)), dims)
