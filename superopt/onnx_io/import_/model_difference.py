"""Compare what ONNX keeps beside the graph: opaque nodes, opsets, functions, default values of
inputs. Names of values are ignored."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
import onnx_ir as oir

from superopt.ir import graph as ir_graph
from superopt.onnx_io.import_.model import Model, file_node
from superopt.onnx_io.import_.subgraphs import captured_values


def interface_difference(a: Model, b: Model) -> str:
    """Return how the interfaces of two models differ, or an empty string."""
    one, two = a.source.model, b.source.model
    mine, theirs = [i.name for i in a.graph.inputs], [i.name for i in b.graph.inputs]
    if mine != theirs:
        return f"its inputs are {', '.join(theirs)}, not {', '.join(mine)}"
    outs, others = ([str(v.name) for v in m.graph.outputs] for m in (one, two))
    if outs != others:
        return f"its outputs are {', '.join(others)}, not {', '.join(outs)}"
    for i, j in zip(a.graph.inputs, b.graph.inputs, strict=True):
        if i.type != j.type:
            return f"its input {i.name} is {j.type}, not {i.type}"
        was, now = (default_value(m, v) for m, v in ((a, i), (b, j)))
        if was != now:
            return f"its input {i.name} has another default value"
    if dict(one.opset_imports) != dict(two.opset_imports):
        return f"its opsets are {dict(two.opset_imports)}, not {dict(one.opset_imports)}"
    if _function_bytes(one) != _function_bytes(two):
        return "its local functions are others"
    return ""


def default_value(model: Model, i: ir_graph.Input) -> tuple[object, ...] | None:
    """Return (dtype, shape, bytes) of an input's default value, or None if it has none."""
    v = model.input_defaults.get(i)
    t = None if v is None else v.const_value
    return None if t is None else (t.dtype, tuple(t.shape), t.tobytes())


def _function_bytes(model: oir.Model) -> list[bytes]:
    return [oir.to_proto(f).SerializeToString(deterministic=True) for f in model.functions.values()]


def is_same_opaque_node(a: ir_graph.Node, b: ir_graph.Node) -> bool:
    """True if two opaque nodes apply the same operation to their operands."""
    return _canonical_bytes(file_node(a)) == _canonical_bytes(file_node(b))


def _canonical_bytes(n: oir.Node) -> bytes:
    """Return a node in a canonical form: values are numbered, values captured from outside come
    first."""
    proto = oir.to_proto(n)
    names = {v.name or "": f"outer{k}" for k, v in enumerate(captured_values(n))}
    for field in ("name", "input", "output", "doc_string", "metadata_props"):
        proto.ClearField(field)
    _rename_values(proto, names)
    form: bytes = proto.SerializeToString(deterministic=True)
    return form


def _rename_values(n: onnx.NodeProto, outer: Mapping[str, str]) -> None:
    attributes = sorted(n.attribute, key=lambda a: a.name)
    del n.attribute[:]
    for a in attributes:
        a.ClearField("doc_string")
        for graph in (a.g,) if a.type == onnx.AttributeProto.GRAPH else a.graphs:
            _rename_graph_values(graph, outer)
        n.attribute.append(a)


def _rename_graph_values(graph: onnx.GraphProto, outer: Mapping[str, str]) -> None:
    names = {"": "", **outer}

    def told(name: str, new: bool = False) -> str:
        if new:
            names[name] = f"inner{len(names)}" if name else ""
        return names.get(name, f"unknown {name}")

    for field in ("name", "doc_string", "value_info", "metadata_props", "quantization_annotation"):
        graph.ClearField(field)
    for v in graph.input:
        v.CopyFrom(onnx.ValueInfoProto(name=told(v.name, new=True)))
    for t in (*graph.initializer, *(s.values for s in graph.sparse_initializer)):
        t.name = told(t.name, new=True)
        t.ClearField("doc_string")
    for n in graph.node:
        n.ClearField("name")
        n.ClearField("doc_string")
        n.ClearField("metadata_props")
        n.input[:] = [told(i) for i in n.input]
        _rename_values(n, names)
        n.output[:] = [told(o, new=True) for o in n.output]
    for v in graph.output:
        v.CopyFrom(onnx.ValueInfoProto(name=told(v.name)))
