"""Models that only onnxruntime reads: one of one node that stands for such a model, and the model
with what it does not declare."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import onnx
from onnx import helper

from superopt.onnx_io.source import Source, read

DOMAIN = "superopt.outside"
# Name, onnxruntime's element type, and shape, None where that is not known.
Port = tuple[str, str, Sequence[int | str | None] | None]


def around(name: str, inputs: Sequence[Port], outputs: Sequence[Port]) -> Source:
    """The model. Raises ValueError for an element type that ONNX does not know."""
    given, gives = ([_value(p) for p in some] for some in (inputs, outputs))
    takes = [p[0] for p in inputs]
    makes = [p[0] for p in outputs if p[0] not in takes]  # an input may be an output, too
    node = helper.make_node("Model", takes, makes, name, domain=DOMAIN)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    graph = helper.make_graph([node], name, given, gives)
    return read(helper.make_model(graph, opset_imports=opsets, ir_version=8))


def declared(source: Source, outputs: Sequence[Port]) -> Source:
    """The model with types and shapes of the outputs that it leaves out and that are known. Raises
    ValueError as above."""
    model = source.skeleton.proto()
    known = {p[0]: _value(p) for p in outputs if p[2] is not None}
    for value in model.graph.output:
        if value.name in known and not value.type.tensor_type.HasField("shape"):
            value.type.CopyFrom(known[value.name].type)
    return source.instead(model)


def inferred(source: Source) -> Source | None:
    """The model with types and shapes of the outputs that it leaves out, as onnx infers them, or as
    inputs that they are; None where it does not."""
    shared = source.skeleton.message
    if all(v.type.tensor_type.HasField("shape") for v in shared.graph.output):
        return None
    model = source.skeleton.proto()
    bare = [v for v in model.graph.output if not v.type.tensor_type.HasField("shape")]
    given = {v.name: v for v in model.graph.input}
    for value in bare:  # first: onnx infers nothing where one tells less than the input
        if value.name in given:
            value.type.CopyFrom(given[value.name].type)
    with suppress(Exception):  # whatever it does not like
        found = {v.name: v for v in onnx.shape_inference.infer_shapes(model).graph.output}
        for value in bare:
            value.type.CopyFrom(found[value.name].type)
        return source.instead(model)
    return None


def scalars(source: Source) -> set[str]:
    """The outputs that have no axes, as onnx infers; none where it cannot."""
    with suppress(Exception):  # whatever it does not like
        found = onnx.shape_inference.infer_shapes(source.skeleton.message).graph.output
        types = {v.name: v.type.tensor_type for v in found}
        return {n for n, t in types.items() if t.HasField("shape") and not t.shape.dim}
    return set()


def _value(p: Port) -> onnx.ValueInfoProto:
    name, element, shape = p
    kind = onnx.TensorProto.DataType.Value(element.upper())
    return helper.make_tensor_value_info(name, kind, None if shape is None else list(shape))
