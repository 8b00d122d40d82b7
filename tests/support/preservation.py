"""What a user of ONNX expects to survive when a model is simplified: a table of models, each with a
predicate on the model before and after. Each has an Identity node that should go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper, parser

Edit = Callable[[onnx.ModelProto], None]
Keeps = Callable[[onnx.ModelProto, onnx.ModelProto], bool]

BASE = """
<ir_version: 10, opset_import: ["" : 18], producer_name: "exporter", producer_version: "1.2",
 domain: "org.net", model_version: 7>
net (float[batch, 4] x, float[batch, 4] unused) => (float[batch, 4] y, float[batch, 4] z)
<float[4] w = {1, 2, 3, 4}>
{
  i = Identity(x)
  r = Relu(i)
  y = Add(r, w)
  z = Mul(y, r)
}
"""
CONTROL_FLOW = """
<ir_version: 10, opset_import: ["" : 18]>
net (float[batch, 4] x, bool c) => (float[batch, 4] y)
{
  i = Identity(x)
  y = If (c) <
    then_branch = yes () => (float[batch, 4] a) { a = Relu(i) },
    else_branch = no () => (float[batch, 4] b) { b = Neg(i) }
  >
}
"""
CUSTOM = """
<ir_version: 10, opset_import: ["" : 18, "org.custom" : 3]>
net (float[batch, 4] x) => (float[batch, 4] y)
{
  i = Identity(x)
  y = org.custom.Blend<strength = 2, mode = "soft">(i)
}
"""
FUNCTION = """
<ir_version: 10, opset_import: ["" : 18, "local" : 1]>
net (float[batch, 4] x) => (float[batch, 4] y)
{
  i = Identity(x)
  y = local.twice(i)
}
<domain: "local", opset_import: ["" : 18]>
twice (a) => (b) { b = Add(a, a) }
"""
LARGE = """
<ir_version: 10, opset_import: ["" : 18]>
net (float[batch, 8192] x) => (float[batch, 8192] y)
{
  i = Identity(x)
  y = Add(i, w)
}
"""
OPTIONAL = """
<ir_version: 10, opset_import: ["" : 18]>
net (float[3, 2, 4] x, float[1, 12, 4] w, float[1, 12, 3] r) => (float[1, 2, 3] h)
{
  i = Identity(x)
  , h = LSTM<hidden_size = 3>(i, w, r)
}
"""


@dataclass(frozen=True, slots=True)
class PreservationPoint:
    """One thing that survives; has_external_data: the model is written with its weights beside
    it; runs: ONNX Runtime runs the model."""

    name: str
    text: str
    edit: Edit
    keeps: Keeps
    has_external_data: bool = False

    def write(self, path: Path) -> onnx.ModelProto:
        """Write the model to `path`; return it."""
        model = parser.parse_model(self.text)
        for n in model.graph.node:
            n.name = f"node_{next(o for o in n.output if o)}"
        self.edit(model)
        onnx.save_model(
            model, path, save_as_external_data=self.has_external_data, size_threshold=0,
            location="weights.bin",
        ) if self.has_external_data else onnx.save_model(model, path)  # fmt: skip
        return onnx.load_model(path, load_external_data=False)


def _node(model: onnx.ModelProto, output: str) -> onnx.NodeProto | None:
    return next((n for n in model.graph.node if output in n.output), None)


def _add_property(message: object, key: str, value: str) -> None:
    entry = message.metadata_props.add()  # type: ignore[attr-defined]
    entry.key, entry.value = key, value


def _properties(message: object) -> dict[str, str]:
    return {e.key: e.value for e in message.metadata_props}  # type: ignore[attr-defined]


def _leave(model: onnx.ModelProto) -> None:
    """Do not edit the model."""


def _document(model: onnx.ModelProto) -> None:
    model.doc_string, model.graph.doc_string = "of the model", "of the graph"
    for value in (*model.graph.input, *model.graph.output, *model.graph.node):
        value.doc_string = f"of {value.name}"


def _keeps_documents(a: onnx.ModelProto, b: onnx.ModelProto) -> bool:
    kept = all((m := _node(b, o)) and m.doc_string == f"of node_{o}" for o in ("r", "y", "z"))
    return bool(
        kept
        and (a.doc_string, a.graph.doc_string) == (b.doc_string, b.graph.doc_string)
        and all(v.doc_string == f"of {v.name}" for v in (*b.graph.input, *b.graph.output))
    )


def _add_properties(model: onnx.ModelProto) -> None:
    for n, message in enumerate((model, model.graph, *model.graph.node)):
        _add_property(message, "owner", f"team {n}")


def _keeps_properties(a: onnx.ModelProto, b: onnx.ModelProto) -> bool:
    same = _properties(a).items() <= _properties(b).items()
    same &= _properties(a.graph).items() <= _properties(b.graph).items()
    pairs = [(_node(a, o), _node(b, o)) for o in ("r", "y", "z")]
    return same and all(m and _properties(n).items() <= _properties(m).items() for n, m in pairs)


def _add_default_input(model: onnx.ModelProto) -> None:
    model.graph.input.append(helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, [4]))


def _add_large_weight(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(numpy_helper.from_array(np.arange(8192, dtype="f"), "w"))


def _declare_values(model: onnx.ModelProto) -> None:
    info = helper.make_tensor_value_info("r", onnx.TensorProto.FLOAT, ["batch", 4])
    model.graph.value_info.append(info)


def _make_sparse(model: onnx.ModelProto) -> None:
    dense = model.graph.initializer.pop()
    values = helper.make_tensor(dense.name, onnx.TensorProto.FLOAT, [2], [1.0, 2.0])
    at = helper.make_tensor("at", onnx.TensorProto.INT64, [2], [0, 3])
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, at, [4]))


def _annotate(model: onnx.ModelProto) -> None:
    note = model.graph.quantization_annotation.add(tensor_name="w")
    note.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="w")


def _add_training(model: onnx.ModelProto) -> None:
    training = model.training_info.add()
    training.initialization.CopyFrom(
        helper.make_graph(
            [helper.make_node("Identity", ["one"], ["w0"])], "init", [],
            [helper.make_tensor_value_info("w0", onnx.TensorProto.FLOAT, [4])],
            [helper.make_tensor("one", onnx.TensorProto.FLOAT, [4], [1.0] * 4)],
        )
    )  # fmt: skip
    training.initialization_binding.add(key="w", value="w0")


def _keeps_control_flow(a: onnx.ModelProto, b: onnx.ModelProto) -> bool:
    n, m = _node(a, "y"), _node(b, "y")
    if n is None or m is None or m.op_type != "If":
        return False
    return [x.g.name for x in n.attribute] == [x.g.name for x in m.attribute] and [
        [k.op_type for k in x.g.node] for x in n.attribute
    ] == [[k.op_type for k in x.g.node] for x in m.attribute]


def _keeps_custom(a: onnx.ModelProto, b: onnx.ModelProto) -> bool:
    n, m = _node(a, "y"), _node(b, "y")
    return bool(
        n and m and (n.domain, n.op_type, n.name) == (m.domain, m.op_type, m.name)
        and list(n.attribute) == list(m.attribute)
    )  # fmt: skip


def _keeps_function(a: onnx.ModelProto, b: onnx.ModelProto) -> bool:
    n = _node(b, "y")
    texts = [[onnx.printer.to_text(f) for f in m.functions] for m in (a, b)]
    return bool(texts[0] == texts[1] and n and n.op_type == "twice")


def _keeps_optional(a: onnx.ModelProto, b: onnx.ModelProto) -> bool:
    n = _node(b, "h")
    return n is not None and n.op_type == "LSTM" and list(n.output) in (["", "h"], ["", "h", ""])


def _versions(m: onnx.ModelProto) -> object:
    return m.ir_version, sorted((o.domain, o.version) for o in m.opset_import)


def _shape_names(m: onnx.ModelProto) -> object:
    values = (*m.graph.input, *m.graph.output)
    return [[d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in values]


POINTS = (
    PreservationPoint(
        "inputs: names, order, types, unused ones", BASE, _leave,
        lambda a, b: [(v.name, v.type) for v in a.graph.input]
        == [(v.name, v.type) for v in b.graph.input],
    ),
    PreservationPoint(
        "outputs: names, order, types", BASE, _leave,
        lambda a, b: [(v.name, v.type) for v in a.graph.output]
        == [(v.name, v.type) for v in b.graph.output],
    ),
    PreservationPoint(
        "names of symbolic dimensions", BASE, _leave,
        lambda a, b: _shape_names(a) == _shape_names(b),
    ),
    PreservationPoint("doc strings", BASE, _document, _keeps_documents),
    PreservationPoint("metadata_props", BASE, _add_properties, _keeps_properties),
    PreservationPoint(
        "opset imports and IR version", BASE, _leave, lambda a, b: _versions(a) == _versions(b)
    ),
    PreservationPoint(
        "producer, domain, model version", BASE, _leave,
        lambda a, b: (a.producer_name, a.producer_version, a.domain, a.model_version)
        == (b.producer_name, b.producer_version, b.domain, b.model_version),
    ),
    PreservationPoint(
        "name of the graph", BASE, _leave, lambda a, b: a.graph.name == b.graph.name
    ),
    PreservationPoint(
        "names of nodes", BASE, _leave,
        lambda a, b: {n.name for n in b.graph.node} == {"node_r", "node_y", "node_z"},
    ),
    PreservationPoint(
        "names of initializers", BASE, _leave,
        lambda a, b: [t.name for t in b.graph.initializer] == ["w"],
    ),
    PreservationPoint(
        "initializers that are inputs", BASE, _add_default_input,
        lambda a, b: "w" in [v.name for v in b.graph.input]
        and "w" in [t.name for t in b.graph.initializer],
    ),
    PreservationPoint(
        "value_info", BASE, _declare_values,
        lambda a, b: any(v == a.graph.value_info[0] for v in b.graph.value_info),
    ),
    PreservationPoint("local functions", FUNCTION, _leave, _keeps_function),
    PreservationPoint("control-flow subgraphs", CONTROL_FLOW, _leave, _keeps_control_flow),
    PreservationPoint("nodes of custom domains", CUSTOM, _leave, _keeps_custom),
    PreservationPoint("optional outputs", OPTIONAL, _leave, _keeps_optional),
    PreservationPoint(
        "external data (tensors above 16 KiB)", LARGE, _add_large_weight,
        lambda a, b: all(t.data_location == onnx.TensorProto.EXTERNAL for t in b.graph.initializer),
        has_external_data=True,
    ),
    PreservationPoint(
        "sparse initializers", BASE, _make_sparse,
        lambda a, b: list(a.graph.sparse_initializer) == list(b.graph.sparse_initializer),
    ),
    PreservationPoint(
        "quantization annotations", BASE, _annotate,
        lambda a, b: list(a.graph.quantization_annotation) == list(b.graph.quantization_annotation),
    ),
    PreservationPoint(
        "training information", BASE, _add_training,
        lambda a, b: list(a.training_info) == list(b.training_info),
    ),
)  # fmt: skip


def removes_identity(model: onnx.ModelProto) -> bool:
    """True if the model has no Identity node left."""
    return all(n.op_type != "Identity" for n in model.graph.node)
