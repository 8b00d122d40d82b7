"""Provenance of a program's tensors: the nodes and values of its graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from superopt.ir import graph as ir_graph
from superopt.plan.lowering.graph_tensors import GraphTensors
from superopt.te.analysis.walk import loads
from superopt.te.expr.tensor import Tensor


@dataclass(frozen=True, slots=True)
class Provenance:
    """current: the definitions that kernels compute, by original tensor. nodes: the node of each
    expression's tensors. values: the graph value of a tensor."""

    graph: ir_graph.Graph
    current: Mapping[Tensor, Tensor]
    nodes: Mapping[Tensor, ir_graph.Node]
    values: Mapping[Tensor, ir_graph.Value]

    def nodes_of(self, t: Tensor) -> tuple[ir_graph.Node, ...]:
        """Return the nodes that were fused into a tensor of `current`, operands first; empty for a
        copy."""
        found: dict[ir_graph.Node, None] = {}
        seen: set[Tensor] = set()
        stack = [t]
        while stack:
            x = stack.pop()
            if x in seen or (x is not t and x in self.current):
                continue
            seen.add(x)
            if x in self.nodes:
                found[self.nodes[x]] = None
            stack += [] if x.body is None else [load.tensor for load in loads(x.body)]
        return tuple(reversed(found))

    def value_of(self, t: Tensor) -> ir_graph.Value | None:
        """Return the graph value that a tensor of `current` is, or belongs to."""
        if t in self.values:
            return self.values[t]
        return ir_graph.results(self.nodes[t])[0] if t in self.nodes else None


def provenance_of(
    graph: ir_graph.Graph, tensors: GraphTensors, current: Mapping[Tensor, Tensor]
) -> Provenance:
    values = {x: v for v, x in tensors.by_value.items() if isinstance(x, Tensor)}
    return Provenance(graph, current, tensors.nodes, values)


def inherit_names(
    old: ir_graph.Graph, new: ir_graph.Graph, names: Mapping[ir_graph.Value, str]
) -> dict[ir_graph.Value, str]:
    """Return names for the values of a rewritten graph: those of the values that they replace,
    found from the outputs as far as both graphs have the same operators."""
    out: dict[ir_graph.Value, str] = {}
    seen: set[ir_graph.Value] = set()
    stack = list(zip(new.outputs, old.outputs, strict=True))
    while stack:
        v, was = stack.pop()
        if v in seen:
            continue
        seen.add(v)
        if was in names:
            out[v] = names[was]
        n, before = ir_graph.producer(v), ir_graph.producer(was)
        if n is None or before is None:
            continue
        while before.op is not n.op and before.inputs and before.inputs[0] is not None:
            # an operator that was fused into it, such as a normalisation
            above = ir_graph.producer(before.inputs[0])
            if above is None:
                break
            before = above
        if before.op is n.op:  # one of them may have an operand more, such as a bias
            pairs = zip(n.inputs, before.inputs, strict=False)
            stack += [(a, b) for a, b in pairs if a is not None and b is not None]
    return out
