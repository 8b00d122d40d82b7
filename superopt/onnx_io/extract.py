"""A part of a model as a model of its own, between values by their names in the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as oir
from onnx_ir.convenience import extract

from superopt.onnx_io.model import Model
from superopt.onnx_io.types import onnx_dtype
from superopt.te.expr import TensorType


def extracted(
    model: Model, given: Mapping[str, TensorType], outputs: Sequence[str]
) -> tuple[bytes, tuple[str, ...]]:
    """A model file that computes `outputs` from `given`, and from inputs of the model where it
    needs them; and the names of its inputs.

    Raises ValueError where a name is none of the file's, and for a model above protobuf's limit.
    """
    theirs = model.source.model
    own = [v.name for v in theirs.graph.inputs if v.name is not None]
    graph = extract(theirs.graph, [*given, *(n for n in own if n not in given)], list(outputs))
    for v in list(graph.inputs):
        if v.name is not None and v.name in given and v.type is None:
            dtype = given[v.name].dtype
            v.type = None if dtype is None else oir.TensorType(onnx_dtype(dtype))
        if not v.uses() and v.name not in outputs:
            graph.inputs.remove(v)
    graph.opset_imports.update(theirs.graph.opset_imports)
    part = oir.Model(
        graph,
        ir_version=theirs.ir_version,
        functions=[f.clone() for f in theirs.functions.values()],
    )
    names = tuple(v.name for v in graph.inputs if v.name is not None)
    return bytes(oir.to_proto(part).SerializeToString()), names
