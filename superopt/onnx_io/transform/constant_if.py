"""Constant folding of If: the nodes of the branch that is taken replace the If. torch writes an If
with a constant condition where it squeezes a dimension without looking up its size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set

import numpy as np
import onnx

from superopt.ir import graph as ir_graph
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.import_.model import Model
from superopt.onnx_io.read.protos import replace_nodes

BRANCH_ATTRIBUTE = {True: "then_branch", False: "else_branch"}


def constant_conditions(model: Model) -> dict[int, bool]:
    """Return the constant conditions, by the positions of their If nodes in the main graph."""
    out = {}
    for n in ir_graph.nodes(model.graph):
        given = n.inputs[0] if n.op.name == "If" and not n.op.domain else None
        if isinstance(given, ir_graph.Constant) and n in model.origins:
            out[model.origins[n].position] = bool(np.all(given.load()))
    return out


def fold_constant_ifs(model: Model) -> Model:
    """Fold all Ifs with constant conditions, including those that become constant on the way."""
    while known := constant_conditions(model):
        source = model.source
        proto = source.skeleton.new_proto()
        inline_branches(proto.graph, known)
        model = import_model(source.with_proto(proto))
    return model


def inline_branches(
    graph: onnx.GraphProto, taken: Mapping[int, bool], dropped: Set[int] = frozenset()
) -> None:
    """Replace each If at a position in `taken` by the nodes of its branch, and drop the nodes at
    the positions `dropped`."""
    nodes: list[onnx.NodeProto] = []
    for k, n in enumerate(graph.node):
        if k in dropped:
            continue
        if k not in taken:
            nodes.append(n)
            continue
        (branch,) = (a.g for a in n.attribute if a.name == BRANCH_ATTRIBUTE[taken[k]])
        nodes += _branch_nodes(branch, n)
        graph.initializer.extend(_branch_initializers(branch, n))
    replace_nodes(graph, nodes)


def _branch_initializers(branch: onnx.GraphProto, n: onnx.NodeProto) -> Iterator[onnx.TensorProto]:
    names = _unique_names(branch, n)
    for t in branch.initializer:
        out = onnx.TensorProto()
        out.CopyFrom(t)
        out.name = names[t.name]
        yield out


def _branch_nodes(branch: onnx.GraphProto, n: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    names = _unique_names(branch, n)
    for inner in branch.node:
        out = onnx.NodeProto()
        out.CopyFrom(inner)
        out.name = f"{_name_prefix(n)}/{inner.name}" if inner.name else ""
        rename_values(out, names)
        yield out
    for v, name in zip(branch.output, n.output, strict=True):
        if name:
            yield onnx.helper.make_node("Identity", [names.get(v.name, v.name)], [name])


def _unique_names(branch: onnx.GraphProto, n: onnx.NodeProto) -> dict[str, str]:
    """Return a unique name for each value that the branch defines."""
    some = [t.name for t in branch.initializer]
    some += [name for inner in branch.node for name in inner.output if name]
    return {name: f"{_name_prefix(n)}/{name}" for name in some}


def _name_prefix(n: onnx.NodeProto) -> str:
    """Return the prefix of the names that the branches of an If define."""
    return next((name for name in n.output if name), n.name)


def rename_values(n: onnx.NodeProto, names: Mapping[str, str]) -> None:
    """Rename values that the node and its subgraphs read or write."""
    for some in (n.input, n.output):
        some[:] = [names.get(x, x) for x in some]
    for a in n.attribute:
        for inner in (*([a.g] if a.HasField("g") else ()), *a.graphs):
            for v in inner.output:
                v.name = names.get(v.name, v.name)
            for m in inner.node:
                rename_values(m, names)
