"""Export a graph to ONNX with the opset, IR version and names of its source model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import onnx_ir as oir

from superopt.ir import graph as ir_graph
from superopt.ir.op import Op
from superopt.onnx_io.export.graph_writer import ExportError as ExportError
from superopt.onnx_io.export.graph_writer import ExportTarget, GraphWriter, copy_value
from superopt.onnx_io.export.provenance import has_same_attributes, trace_provenance
from superopt.onnx_io.import_.dtypes import onnx_dtype
from superopt.onnx_io.import_.importer import OVERRIDABLE_SINCE_IR_VERSION
from superopt.onnx_io.import_.model import Model, Origin
from superopt.onnx_io.import_.schema import schema
from superopt.onnx_io.import_.type_inference import value_info_names
from superopt.te.expr.tensor import TensorType

ExportedModel = tuple[oir.Model, dict[ir_graph.Value, str]]  # and the names of its values


def is_expressible(op: Op, opset: int) -> bool:
    """True if `op` exists in `opset` of its domain."""
    if op.domain is None:
        return False
    s = schema(op.name, opset, op.domain)
    return s is not None and s.since >= op.since


def export_model(
    model: Model, graph: ir_graph.Graph | None = None, extra_outputs: Sequence[ir_graph.Value] = ()
) -> oir.Model:
    """Export `graph` (default: the model's own) with everything that ONNX keeps beside a graph.

    Unchanged parts are written as they were in the file; nodes downstream of a rewrite keep their
    names. `extra_outputs` follow the model's outputs and are named `extra0`, `extra1`, ... Raises
    ExportError for an operator or attribute that the model's opset does not have.
    """
    return export_with_names(model, graph or model.graph, extra_outputs)[0]


def export_with_names(
    model: Model,
    graph: ir_graph.Graph,
    extra_outputs: Sequence[ir_graph.Value] = (),
    constant_bases: Mapping[ir_graph.Constant, str] = MappingProxyType({}),
    keep_constant_nodes: bool = True,
) -> ExportedModel:
    """Return what `export_model` does, and the name in the file of each result in `graph`.

    constant_bases: names for constants that the model does not have. keep_constant_nodes: False:
        Constant nodes become initializers, where the IR version allows.
    """
    theirs = model.source.model
    top = theirs.graph
    target = replace(_export_target(model, graph), constant_bases=constant_bases)
    if not keep_constant_nodes:
        target = replace(target, constant_nodes={})
    if extra_outputs:
        graph = ir_graph.Graph(graph.inputs, (*graph.outputs, *extra_outputs))
    whole = graph
    graph, target, collapsed = collapse_expansions(model, graph, target)
    by_name = {v.name: v for v in top.inputs}
    inputs = {i: copy_value(by_name[i.name]) for i in graph.inputs}
    said = [copy_value(v) for v in top.outputs]
    said += [
        oir.Value(name=f"extra{n}", type=_ir_type(v.type)) for n, v in enumerate(extra_outputs)
    ]
    writer = GraphWriter(target, graph, inputs, said)
    constants = {v.name: v for v in writer.initializers}
    given = {v.name: v for v in inputs.values()}
    defaults: list[oir.Value] = []
    for i, default in model.input_defaults.items():
        inputs[i].const_value = default.const_value
        defaults.append(inputs[i])
    listed: list[oir.Value] = []
    for v in top.inputs:
        if v.name in given:
            listed.append(given[v.name])
        elif v.name in constants and theirs.ir_version < OVERRIDABLE_SINCE_IR_VERSION:
            listed.append(_as_graph_input(constants[v.name], v))
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
    made = oir.Model(
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
    names = ((v, writer.value_name(collapsed.get(v, v))) for v in ir_graph.walk(whole))
    return made, {v: name for v, name in names if name}


def export_graph(graph: ir_graph.Graph, *, opset: int, ir_version: int) -> oir.Model:
    """Export a graph that has no source model (a node to time, an example).

    Inputs keep their names, outputs are `y0`, `y1`, ... Raises ExportError as `export_model` does.
    """
    inputs = {i: _ir_value(i.name, i.type) for i in graph.inputs}
    said = [_ir_value(f"y{n}", v.type) for n, v in enumerate(graph.outputs)]
    writer = GraphWriter(ExportTarget(opset, ir_version), graph, inputs, said)
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


def _export_target(model: Model, graph: ir_graph.Graph) -> ExportTarget:
    """Return the names and documentation for `graph`, whose nodes may replace nodes of the
    model."""
    names, doubles, origins = dict(model.names), dict[ir_graph.Node, Origin](), dict(model.origins)
    declared = dict(model.declared_values)
    if graph is not model.graph:
        found = trace_provenance(model.graph, graph)
        for new, old in found.values.items():
            if old in model.names:
                names.setdefault(new, model.names[old])
            if old in model.declared_values:
                declared.setdefault(new, model.declared_values[old])
        for n, m in found.nodes.items():
            if m in model.origins:
                same = not n.op.opaque and has_same_attributes(n, m)
                (origins if same else doubles)[n] = model.origins[m]
    theirs = model.source.model
    return ExportTarget(
        model.opset,
        theirs.ir_version,
        names,
        origins,
        doubles,
        model.tensors,
        model.constant_nodes,
        declared,
        model.size_producers,
        frozenset(theirs.graph.initializers),
        value_info_names(model.source),
    )


def collapse_expansions(
    model: Model, graph: ir_graph.Graph, target: ExportTarget
) -> tuple[ir_graph.Graph, ExportTarget, dict[ir_graph.Value, ir_graph.Value]]:
    """Replace each complete expansion by the file's own node. Return the graph, the export target
    extended by the nodes and values that this creates, and the values that replace others."""
    of = {v: e for e in model.expansions for v in e.results}
    if not of:
        return graph, target, {}
    new: dict[ir_graph.Value, ir_graph.Value] = {}
    names, declared = dict(target.names), dict(target.declared_values)
    origins, doubles = dict(target.origins), dict(target.replaced_origins)

    def renamed(old: ir_graph.Value, made: ir_graph.Value) -> None:
        new[old] = made
        for table in (names, declared):
            if old in table:
                table.setdefault(made, table[old])  # type: ignore[arg-type]

    for n in ir_graph.nodes(graph):
        made = n
        inputs = tuple(None if v is None else new.get(v, v) for v in n.inputs)
        if inputs != n.inputs:
            made = ir_graph.intern_node(n.op, inputs, n.attrs, n.types)
            for some in (origins, doubles):
                if n in some:
                    some.setdefault(made, some[n])
        for old, v in zip(ir_graph.results(n), ir_graph.results(made), strict=True):
            if (e := of.get(old)) is not None:
                given = tuple(None if x is None else new.get(x, x) for x in e.carrier.inputs)
                carrier = ir_graph.intern_node(
                    e.carrier.op, given, e.carrier.attrs, e.carrier.types
                )
                origins.setdefault(carrier, origins[e.carrier])
                renamed(old, ir_graph.result(carrier, e.results.index(old)))
            elif v is not old:
                renamed(old, v)
    outputs = tuple(new.get(v, v) for v in graph.outputs)
    known = replace(
        target, names=names, declared_values=declared, origins=origins, replaced_origins=doubles
    )
    return ir_graph.Graph(graph.inputs, outputs), known, new


def _as_graph_input(made: oir.Value, said: oir.Value) -> oir.Value:
    """Return an initializer as a graph input, with the type that the file declares for the
    input."""
    made.type, made.shape, made.doc_string = said.type, said.shape, said.doc_string
    return made


def _in_file_order(values: list[oir.Value], top: oir.Graph) -> list[oir.Value]:
    place = {name: n for n, name in enumerate(top.initializers)}
    return sorted(values, key=lambda v: place.get(v.name or "", len(place)))


def _ir_value(name: str, t: TensorType) -> oir.Value:
    shape = None
    if t.shape is not None:
        shape = oir.Shape([d if isinstance(d, int) else str(d) for d in t.shape])
    return oir.Value(name=name, type=_ir_type(t), shape=shape)


def _ir_type(t: TensorType) -> oir.TensorType | None:
    return None if t.dtype is None else oir.TensorType(onnx_dtype(t.dtype))
