"""Groups of a model's nodes that kernels run: each becomes one node in onnxruntime.

A group is convex: no path leaves it and comes back, so that it can run at once. Nodes are numbered
by layers: a node that kernels run is one layer above the nodes that they do not run and that it
reads, and in the layer of those that they run. A layer is a group: a path between two of its nodes
stays in it, as layers do not fall along a path.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import onnx

from superopt.ir import graph
from superopt.onnx_io.import_.importer import OVERRIDABLE_SINCE_IR_VERSION
from superopt.onnx_io.import_.model import Model
from superopt.onnx_io.transform.split_model import read_names


def file_positions(model: Model, nodes: Iterable[graph.Node]) -> set[int]:
    """Return the positions in the file of nodes of the imported graph."""
    carriers = {n: e.carrier for e in model.expansions for n in e.nodes}
    found: set[int] = set()
    for n in nodes:
        seen: set[graph.Node] = set()
        while n not in model.origins and n in carriers and n not in seen:
            seen.add(n)
            n = carriers[n]
        if n not in model.origins:
            raise NotImplementedError(f"{n.op.title} is of no node of the file")
        found.add(model.origins[n].position)
    return found


def group_nodes(nodes: Sequence[onnx.NodeProto], unsupported: set[int]) -> list[list[int]]:
    """Return the positions of each group, in an order in which they can run. Constant nodes are in
    none: each reader has its own. nodes: in topological order."""
    producers = {name: k for k, n in enumerate(nodes) for name in n.output if name}
    layers: dict[int, int] = {}
    for k, n in enumerate(nodes):
        reads = [producers[name] for name in read_names(n) if name in producers]
        before = [layers[j] + (j in unsupported and k not in unsupported) for j in reads]
        layers[k] = max(before, default=0)
    groups: dict[int, list[int]] = {}
    for k, n in enumerate(nodes):
        if k not in unsupported and not is_constant(n):
            groups.setdefault(layers[k], []).append(k)
    return [groups[layer] for layer in sorted(groups)]


def is_constant(n: onnx.NodeProto) -> bool:
    return n.op_type == "Constant" and n.domain in ("", "ai.onnx")


def group_ports(model: onnx.ModelProto, group: Iterable[int]) -> tuple[list[str], list[str]]:
    """Return the names of the values that a group reads from outside, and of those that other nodes
    or the graph's outputs read."""
    proto, chosen = model.graph, set(group)
    computed = {name: None for n in proto.node if not is_constant(n) for name in n.output if name}
    given = {v.name for v in proto.input} - fixed_initializers(model)
    made = {name for k in chosen for name in proto.node[k].output}
    reads = dict.fromkeys(name for k in sorted(chosen) for name in read_names(proto.node[k]))
    inputs = [n for n in reads if n not in made and (n in computed or n in given)]
    outside = {v.name for v in proto.output}
    for k, n in enumerate(proto.node):
        if k not in chosen:
            outside.update(read_names(n))
    return inputs, [n for n in computed if n in made and n in outside]


def fixed_initializers(model: onnx.ModelProto) -> set[str]:
    """Return the names of the initializers that callers cannot replace."""
    names = {t.name for t in model.graph.initializer}
    names |= {t.values.name for t in model.graph.sparse_initializer}
    if model.ir_version < OVERRIDABLE_SINCE_IR_VERSION:
        return names
    return names - {v.name for v in model.graph.input}
