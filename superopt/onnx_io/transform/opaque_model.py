"""Models that only ONNX Runtime can read: a one-node model that stands for such a model, and the
model with its missing output types filled in."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import onnx
from onnx import helper

from superopt.onnx_io.read.source import Source, read_model

OPAQUE_MODEL_DOMAIN = "superopt.outside"
# Name, onnxruntime's element type, and shape, None where that is not known.
Port = tuple[str, str, Sequence[int | str | None] | None]


def opaque_model(name: str, inputs: Sequence[Port], outputs: Sequence[Port]) -> Source:
    """Return a model with one opaque node. Raises ValueError for an element type unknown to
    ONNX."""
    given, gives = ([_value_info(p) for p in some] for some in (inputs, outputs))
    takes = [p[0] for p in inputs]
    makes = [p[0] for p in outputs if p[0] not in takes]  # an input may be an output, too
    node = helper.make_node("Model", takes, makes, name, domain=OPAQUE_MODEL_DOMAIN)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(OPAQUE_MODEL_DOMAIN, 1)]
    graph = helper.make_graph([node], name, given, gives)
    return read_model(helper.make_model(graph, opset_imports=opsets, ir_version=8))


def with_output_types(source: Source, outputs: Sequence[Port]) -> Source:
    """Return the model with the known types and shapes of outputs that it leaves undeclared. Raises
    ValueError as `opaque_model` does."""
    model = source.skeleton.new_proto()
    known = {p[0]: _value_info(p) for p in outputs if p[2] is not None}
    for value in model.graph.output:
        if value.name in known and not value.type.tensor_type.HasField("shape"):
            value.type.CopyFrom(known[value.name].type)
    return source.with_proto(model)


def with_inferred_output_types(source: Source) -> Source | None:
    """Return the model with undeclared output types filled in by onnx's inference, or from inputs
    that are outputs; None if nothing is missing or inference fails."""
    shared = source.skeleton.shared_proto
    if all(v.type.tensor_type.HasField("shape") for v in shared.graph.output):
        return None
    model = source.skeleton.new_proto()
    bare = [v for v in model.graph.output if not v.type.tensor_type.HasField("shape")]
    given = {v.name: v for v in model.graph.input}
    for value in bare:  # first: onnx infers nothing where one tells less than the input
        if value.name in given:
            value.type.CopyFrom(given[value.name].type)
    with suppress(Exception):  # whatever it does not like
        found = {v.name: v for v in onnx.shape_inference.infer_shapes(model).graph.output}
        for value in bare:
            value.type.CopyFrom(found[value.name].type)
        return source.with_proto(model)
    return None


def scalar_outputs(source: Source) -> set[str]:
    """Return the outputs of rank 0, as onnx infers; an empty set if inference fails."""
    with suppress(Exception):  # whatever it does not like
        found = onnx.shape_inference.infer_shapes(source.skeleton.shared_proto).graph.output
        types = {v.name: v.type.tensor_type for v in found}
        return {n for n, t in types.items() if t.HasField("shape") and not t.shape.dim}
    return set()


def _value_info(p: Port) -> onnx.ValueInfoProto:
    name, element, shape = p
    kind = onnx.TensorProto.DataType.Value(element.upper())
    return helper.make_tensor_value_info(name, kind, None if shape is None else list(shape))
