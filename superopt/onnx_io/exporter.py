"""Export a graph to ONNX with the opset, IR version and names of its source model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import onnx_ir as oir

from superopt.ir import graph as g
from superopt.ir.op import Op
from superopt.onnx_io.heirs import heirs, same_attributes
from superopt.onnx_io.importer import OVERRIDABLE_SINCE
from superopt.onnx_io.infer import described
from superopt.onnx_io.model import Model, Origin
from superopt.onnx_io.schema import schema
from superopt.onnx_io.types import onnx_dtype
from superopt.onnx_io.writer import ExportError as ExportError
from superopt.onnx_io.writer import Target, Writer, copy_value
from superopt.te.expr import TensorType


def expressible(op: Op, opset: int) -> bool:
    """True if `op` exists in `opset` of its domain."""
    if op.domain is None:
        return False
    s = schema(op.name, opset, op.domain)
    return s is not None and s.since >= op.since


def export_model(
    model: Model, graph: g.Graph | None = None, extra: Sequence[g.Value] = ()
) -> oir.Model:
    """Export `graph` (default: the model's own) with everything that ONNX keeps beside a graph.

    Unchanged parts are written as they were in the file; nodes downstream of a rewrite keep their
    names. `extra_outputs` follow the model's outputs and are named `extra0`, `extra1`, ... Raises
    ExportError for an operator or attribute that the model's opset does not have.
    """
    theirs = model.source.model
    top = theirs.graph
    graph = graph or model.graph
    target = _target(model, graph)
    if extra:
        graph = g.Graph(graph.inputs, (*graph.outputs, *extra))
    graph, target = collapsed(model, graph, target)
    by_name = {v.name: v for v in top.inputs}
    inputs = {i: copy_value(by_name[i.name]) for i in graph.inputs}
    said = [copy_value(v) for v in top.outputs]
    said += [oir.Value(name=f"extra{n}", type=_type(v.type)) for n, v in enumerate(extra)]
    writer = Writer(target, graph, inputs, said)
    constants = {v.name: v for v in writer.initializers}
    given = {v.name: v for v in inputs.values()}
    defaults: list[oir.Value] = []
    for i, default in model.overridable.items():
        inputs[i].const_value = default.const_value
        defaults.append(inputs[i])
    listed: list[oir.Value] = []
    for v in top.inputs:
        if v.name in given:
            listed.append(given[v.name])
        elif v.name in constants and theirs.ir_version < OVERRIDABLE_SINCE:
            listed.append(_listed(constants[v.name], v))
    new = oir.Graph(
        listed,
        writer.outputs,
        nodes=writer.nodes,
        initializers=_in_file_order([*defaults, *writer.initializers], top),
        opset_imports=dict(theirs.opset_imports),
        name=top.name,
        doc_string=top.doc_string,
        metadata_props=dict(top.metadata_props),
    )
    return oir.Model(
        new,
        ir_version=theirs.ir_version,
        producer_name=theirs.producer_name,
        producer_version=theirs.producer_version,
        domain=theirs.domain,
        model_version=theirs.model_version,
        doc_string=theirs.doc_string,
        functions=[f.clone() for f in theirs.functions.values()],
        metadata_props=dict(theirs.metadata_props),
        device_configurations=theirs.device_configurations,
    )


def export_plain(graph: g.Graph, *, opset: int, ir_version: int) -> oir.Model:
    """Export a graph that has no source model (a node to time, an example).

    Inputs keep their names, outputs are `y0`, `y1`, ... Raises ExportError as `export_model` does.
    """
    inputs = {i: _value(i.name, i.type) for i in graph.inputs}
    said = [_value(f"y{n}", v.type) for n, v in enumerate(graph.outputs)]
    writer = Writer(Target(opset, ir_version), graph, inputs, said)
    domains = {n.domain for n in writer.nodes}
    new = oir.Graph(
        list(inputs.values()),
        writer.outputs,
        nodes=writer.nodes,
        initializers=writer.initializers,
        opset_imports={"": opset, **{d: 1 for d in sorted(domains) if d}},
        name="superopt",
    )
    return oir.Model(new, ir_version=ir_version)


def _target(model: Model, graph: g.Graph) -> Target:
    """Return the names and documentation for `graph`, whose nodes may replace nodes of the
    model."""
    names, doubles, origins = dict(model.names), dict[g.Node, Origin](), dict(model.origins)
    if graph is not model.graph:
        found = heirs(model.graph, graph)
        for new, old in found.values.items():
            if old in model.names:
                names.setdefault(new, model.names[old])
        for n, m in found.nodes.items():
            if m in model.origins:
                same = not n.op.opaque and same_attributes(n, m)
                (origins if same else doubles)[n] = model.origins[m]
    theirs = model.source.model
    return Target(
        model.opset,
        theirs.ir_version,
        names,
        origins,
        doubles,
        model.tensors,
        model.literals,
        model.declared,
        model.born,
        frozenset(theirs.graph.initializers),
        described(model.source),
    )


def collapsed(model: Model, graph: g.Graph, target: Target) -> tuple[g.Graph, Target]:
    """Replace each complete expansion by the file's own node. Return the graph, and the export
    target extended by the nodes and values that this creates."""
    of = {v: e for e in model.expansions for v in e.results}
    if not of:
        return graph, target
    new: dict[g.Value, g.Value] = {}
    names, declared = dict(target.names), dict(target.declared)
    origins, doubles = dict(target.origins), dict(target.doubles)

    def renamed(old: g.Value, made: g.Value) -> None:
        new[old] = made
        for table in (names, declared):
            if old in table:
                table.setdefault(made, table[old])  # type: ignore[arg-type]

    for n in g.nodes(graph):
        made = n
        inputs = tuple(None if v is None else new.get(v, v) for v in n.inputs)
        if inputs != n.inputs:
            made = g.intern_node(n.op, inputs, n.attrs, n.types)
            for some in (origins, doubles):
                if n in some:
                    some.setdefault(made, some[n])
        for old, v in zip(g.results(n), g.results(made), strict=True):
            if (e := of.get(old)) is not None:
                given = tuple(None if x is None else new.get(x, x) for x in e.carrier.inputs)
                carrier = g.intern_node(e.carrier.op, given, e.carrier.attrs, e.carrier.types)
                origins.setdefault(carrier, origins[e.carrier])
                renamed(old, g.item(carrier, e.results.index(old)))
            elif v is not old:
                renamed(old, v)
    outputs = tuple(new.get(v, v) for v in graph.outputs)
    known = replace(target, names=names, declared=declared, origins=origins, doubles=doubles)
    return g.Graph(graph.inputs, outputs), known


def _listed(made: oir.Value, said: oir.Value) -> oir.Value:
    """Return an initializer as a graph input, with the type that the file declares for the
    input."""
    made.type, made.shape, made.doc_string = said.type, said.shape, said.doc_string
    return made


def _in_file_order(values: list[oir.Value], top: oir.Graph) -> list[oir.Value]:
    place = {name: n for n, name in enumerate(top.initializers)}
    return sorted(values, key=lambda v: place.get(v.name or "", len(place)))


def _value(name: str, t: TensorType) -> oir.Value:
    shape = None
    if t.shape is not None:
        shape = oir.Shape([d if isinstance(d, int) else str(d) for d in t.shape])
    return oir.Value(name=name, type=_type(t), shape=shape)


def _type(t: TensorType) -> oir.TensorType | None:
    return None if t.dtype is None else oir.TensorType(onnx_dtype(t.dtype))
