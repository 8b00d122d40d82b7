"""Provenance of a program's tensors: the nodes and values of its graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from superopt.ir import graph as g
from superopt.plan.tensors import Tensors
from superopt.te.expr import Tensor
from superopt.te.walk import loads


@dataclass(frozen=True, slots=True)
class Origins:
    """current: the definitions that kernels compute, by original tensor. nodes: the node of each
    expression's tensors. values: the graph value of a tensor."""

    graph: g.Graph
    current: Mapping[Tensor, Tensor]
    nodes: Mapping[Tensor, g.Node]
    values: Mapping[Tensor, g.Value]

    def of(self, t: Tensor) -> tuple[g.Node, ...]:
        """Return the nodes that were fused into a tensor of `current`, operands first; empty for a
        copy."""
        found: dict[g.Node, None] = {}
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

    def value(self, t: Tensor) -> g.Value | None:
        """Return the graph value that a tensor of `current` is, or belongs to."""
        if t in self.values:
            return self.values[t]
        return g.results(self.nodes[t])[0] if t in self.nodes else None


def origins(graph: g.Graph, tensors: Tensors, current: Mapping[Tensor, Tensor]) -> Origins:
    values = {x: v for v, x in tensors.of.items() if isinstance(x, Tensor)}
    return Origins(graph, current, tensors.nodes, values)


def named(old: g.Graph, new: g.Graph, names: Mapping[g.Value, str]) -> dict[g.Value, str]:
    """Return names for the values of a rewritten graph: those of the values that they replace,
    found from the outputs as far as both graphs have the same operators."""
    out: dict[g.Value, str] = {}
    seen: set[g.Value] = set()
    stack = list(zip(new.outputs, old.outputs, strict=True))
    while stack:
        v, was = stack.pop()
        if v in seen:
            continue
        seen.add(v)
        if was in names:
            out[v] = names[was]
        n, before = g.producer(v), g.producer(was)
        if n is None or before is None:
            continue
        while before.op is not n.op and before.inputs and before.inputs[0] is not None:
            # an operator that was fused into it, such as a normalisation
            above = g.producer(before.inputs[0])
            if above is None:
                break
            before = above
        if before.op is n.op:  # one of them may have an operand more, such as a bias
            pairs = zip(n.inputs, before.inputs, strict=False)
            stack += [(a, b) for a, b in pairs if a is not None and b is not None]
    return out
