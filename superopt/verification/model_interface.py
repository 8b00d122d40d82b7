"""Two models with the same interface: how interfaces differ, and one graph on the other's
inputs."""

from __future__ import annotations

from superopt.ir import graph
from superopt.ir.substitute import replace_all
from superopt.onnx_io.import_.model import Model
from superopt.onnx_io.import_.model_difference import (
    default_value,
    interface_difference,
    is_same_opaque_node,
)


def interface_mismatch(a: Model, b: Model) -> str:
    """Return how inputs or outputs differ; empty if they do not."""
    graph_a, graph_b = a.source.model.graph, b.source.model.graph
    for what, x, y in (
        ("inputs", [i.name for i in a.graph.inputs], [i.name for i in b.graph.inputs]),
        ("outputs", [v.name for v in graph_a.outputs], [v.name for v in graph_b.outputs]),
    ):
        if x != y:
            return f"{what} are {', '.join(map(str, x))} and {', '.join(map(str, y))}"
    for i, j in zip(a.graph.inputs, b.graph.inputs, strict=True):
        if i.type.dtype != j.type.dtype:
            return f"input {i.name} is {i.type.dtype} and {j.type.dtype}"
        if _static_dims(i.type.shape) != _static_dims(j.type.shape):
            return f"input {i.name} is {i.type} and {j.type}"
        if default_value(a, i) != default_value(b, j):
            return f"input {i.name} has different default values"
    return ""


def _static_dims(shape: tuple[object, ...] | None) -> tuple[object, ...] | None:
    return None if shape is None else tuple(d if isinstance(d, int) else "?" for d in shape)


def graph_on_inputs_of(a: Model, b: Model) -> graph.Graph | None:
    """Return the graph of `b` on the inputs and constants of `a`, where equal nodes are the same
    objects, including opaque ones; None if symbolic sizes have different names and cannot be
    matched."""
    change: dict[graph.Value, graph.Value] = dict(zip(b.graph.inputs, a.graph.inputs, strict=True))
    if any(i.type != j.type for i, j in change.items()):
        return None
    pool = {(c.type, graph.content_key(c.load())): c for c in graph.constants(a.graph)}
    for c in graph.constants(b.graph):
        same = pool.get((c.type, graph.content_key(c.load())))
        if same is not None:
            change[c] = same
    made = graph.Graph(a.graph.inputs, replace_all(b.graph, change).outputs)
    return made if interface_difference(a, b) else _share_opaque_nodes(a.graph, made)


def _share_opaque_nodes(a: graph.Graph, b: graph.Graph) -> graph.Graph:
    """Return `b` with each opaque node replaced by the one of `a` that has the same form and
    operands.

    Each node of `a` replaces at most one node of `b`, since an opaque node may be random. Both
    graphs have the same inputs, and their models the same opsets and local functions.
    """
    own = set(graph.nodes(a))
    free: dict[tuple[graph.Value | None, ...], list[graph.Node]] = {}
    for n in graph.nodes(a):
        if n.op.opaque:
            free.setdefault(n.inputs, []).append(n)
    made: dict[graph.Value, graph.Value] = {}
    for n in graph.nodes(b) if free else ():
        inputs = tuple(None if v is None else made.get(v, v) for v in n.inputs)
        again = graph.intern_node(n.op, inputs, n.attrs, n.types)
        if n.op.opaque and n not in own:
            some = free.get(inputs, [])
            same = next((m for m in some if m.types == n.types and is_same_opaque_node(m, n)), None)
            if same is not None:
                some.remove(same)
                again = same
        if again is not n:
            made.update(zip(graph.results(n), graph.results(again), strict=True))
    return graph.Graph(b.inputs, tuple(made.get(v, v) for v in b.outputs))
