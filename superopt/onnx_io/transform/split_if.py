"""Split a model at an If whose condition is known only at run time. The result is a model that
computes the condition, and for each value of it a model in which the branch replaces the If.

    y = f(If(c(x), then: p(x), else: q(x)))  =>  c(x);  f(p(x));  f(q(x))
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass

import numpy as np
import onnx

from superopt.ir import graph as ir_graph
from superopt.onnx_io.import_.model import Model
from superopt.onnx_io.read.protos import replace_nodes
from superopt.onnx_io.read.source import Source
from superopt.onnx_io.transform.constant_if import inline_branches, rename_values
from superopt.onnx_io.transform.split_model import (
    forwarded_values,
    node_ancestors,
    prefix_model,
    prune_inputs,
    used_names,
    value_info,
    value_types,
    with_ancestors,
)
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
    before = node_ancestors(nodes, [condition])
    if any(a.g.sparse_initializer for a in nodes[position].attribute):
        return None
    if not before:
        given = next(i for i in model.graph.inputs if i.name == condition)
        at = _IfNode(position, condition, given.type)
        return SplitModel(condition, None, (), _branch_models(source, at, set(), {}))
    made = {name: k for k in before for name in nodes[k].output if name}
    rest = [n for k, n in enumerate(nodes) if k not in before]
    wanted = {v.name for v in proto.graph.output}
    used = used_names(rest) - {condition}  # of which the arms know the value
    read = [name for name in made if name in wanted or name in used]
    candidates = with_ancestors(nodes, made, [condition, *read])
    types = value_types(source, [nodes[k] for k in sorted(before)], candidates)
    passed, again = forwarded_values(nodes, made, read, types, wanted)
    if any(types[name].dtype is None for name in passed):
        return None
    outputs = tuple(dict.fromkeys((condition, *passed)))
    prefix = prefix_model(source, [nodes[k] for k in sorted(before)], outputs)
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
        nodes = list(graph.node)  # onnxruntime rejects inputs that only dead nodes read
        replace_nodes(
            graph, [nodes[k] for k in sorted(node_ancestors(nodes, [v.name for v in kept]))]
        )
        used = used_names(graph.node)
        graph.input.extend(value_info(name, t) for name, t in forwarded.items() if name in used)
        prune_inputs(graph, used | {v.name for v in kept})
        out[taken] = source.with_proto(proto)
    return out
