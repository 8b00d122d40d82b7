"""Extract a submodel between values given by their names in the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as oir
from onnx_ir.convenience import extract

from superopt.onnx_io.import_.dtypes import onnx_dtype
from superopt.onnx_io.import_.importer import OVERRIDABLE_SINCE_IR_VERSION
from superopt.onnx_io.read.packed_parts import to_model_proto
from superopt.onnx_io.read.source import Source
from superopt.te.expr.tensor import TensorType


def extract_submodel(
    source: Source, input_types: Mapping[str, TensorType], outputs: Sequence[str]
) -> tuple[bytes, tuple[str, ...]]:
    """Return a model file that computes `outputs` from `input_types` and from inputs of the source
    model, and the names of its inputs.

    Raises ValueError for an unknown name, or for a model above protobuf's size limit.
    """
    theirs = source.model
    old = (
        theirs.ir_version < OVERRIDABLE_SINCE_IR_VERSION
    )  # initializers are inputs, which nobody gives
    known = theirs.graph.initializers if old else ()
    own = [v.name for v in theirs.graph.inputs if v.name is not None and v.name not in known]
    graph = extract(
        theirs.graph, [*input_types, *(n for n in own if n not in input_types)], list(outputs)
    )
    for v in list(graph.inputs):
        if v.name is not None and v.name in input_types:
            _fill_type(v, input_types[v.name])
        if not v.uses() and v.name not in outputs:
            graph.inputs.remove(v)
    graph.opset_imports.update(theirs.graph.opset_imports)
    part = oir.Model(
        graph,
        ir_version=max(theirs.ir_version, OVERRIDABLE_SINCE_IR_VERSION),
        functions=[f.clone() for f in theirs.functions.values()],
    )
    names = tuple(v.name for v in graph.inputs if v.name is not None)
    return bytes(to_model_proto(part).SerializeToString()), names


def value_names(source: Source) -> frozenset[str]:
    """Return the names of the values of the main graph."""
    graph = source.model.graph
    values = (*graph.inputs, *graph.initializers.values(), *(v for n in graph for v in n.outputs))
    return frozenset(v.name for v in values if v.name)


def _fill_type(v: oir.Value, t: TensorType) -> None:
    """Set a type or shape that the file omits. A Scan whose body declares no shapes needs them."""
    if v.type is None and t.dtype is not None:
        v.type = oir.TensorType(onnx_dtype(t.dtype))
    if v.shape is None and t.shape is not None:
        v.shape = oir.Shape([d if isinstance(d, int) else None for d in t.shape])
