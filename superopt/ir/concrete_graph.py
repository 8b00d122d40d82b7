"""A graph at given sizes."""

from __future__ import annotations

from collections.abc import Mapping

from superopt.ir import graph as ir_graph
from superopt.ir.evaluate import concrete_attrs
from superopt.te.expr import index
from superopt.te.expr.tensor import TensorType


def concrete_type(t: TensorType, sizes: Mapping[str, int]) -> TensorType:
    """Return `t` with its symbolic sizes replaced; KeyError names one without a value."""
    if t.shape is None or all(isinstance(d, int) for d in t.shape):
        return t
    return TensorType(t.dtype, tuple(index.evaluate(d, dict(sizes)) for d in t.shape))


def concrete_graph(graph: ir_graph.Graph, sizes: Mapping[str, int]) -> ir_graph.Graph:
    """Return a graph with numbers for its symbolic sizes; KeyError or ValueError names one without
    a value."""
    new: dict[ir_graph.Value, ir_graph.Value] = {}
    inputs = []
    for i in graph.inputs:
        t = concrete_type(i.type, sizes)
        made = i if t == i.type else ir_graph.Input(i.name, t)
        new[i] = made
        inputs.append(made)
    for n in ir_graph.nodes(graph):
        given = tuple(None if v is None else new.get(v, v) for v in n.inputs)
        types = tuple(concrete_type(t, sizes) for t in n.types)
        attrs = concrete_attrs(n.attrs, sizes)
        if given == n.inputs and types == n.types and attrs == n.attrs:
            continue
        made_node = ir_graph.intern_node(n.op, given, attrs, types)
        new.update(zip(ir_graph.results(n), ir_graph.results(made_node), strict=True))
    return ir_graph.Graph(tuple(inputs), tuple(new.get(v, v) for v in graph.outputs))
