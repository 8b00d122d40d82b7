"""One node of a file as a model of its own, for operands whose values are known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as oir

from superopt.ir import graph as ir_graph
from superopt.onnx_io.import_.data_propagation import MAX_TRACKED_ELEMENTS
from superopt.onnx_io.import_.dtypes import onnx_dtype
from superopt.onnx_io.import_.importer import OVERRIDABLE_SINCE_IR_VERSION
from superopt.onnx_io.import_.model import file_node
from superopt.onnx_io.import_.subgraphs import captured_values, clone_node
from superopt.onnx_io.read.packed_parts import to_model_proto
from superopt.onnx_io.read.source import Source
from superopt.te.expr.dtype import F64, from_numpy


def node_model(
    source: Source, n: ir_graph.Node, operands: Sequence[np.ndarray | None]
) -> tuple[bytes, dict[str, np.ndarray]]:
    """The file of a model of the opaque node `n` alone, and the values to feed it by input name.

    source: the file that `n` was read from, whose opsets and local functions the model has.
    operands: one array for each operand of `n`, None where `n` has none. An integer operand of at
        most SMALL elements becomes an initializer, so that a shape or an axis is known when the
        model is imported. Float operands may be wider than in the file.

    Results keep their order and are named `y0`, `y1`, ...; a result without a name in the file has
    none. Raises KeyError for an element type that ONNX does not have.
    """
    theirs = file_node(n)
    values: list[oir.Value | None] = []
    inputs: list[oir.Value] = []
    initializers: list[oir.Value] = []
    feeds: dict[str, np.ndarray] = {}
    for k, array in enumerate(operands):
        if array is None:
            values.append(None)
            continue
        dtype = onnx_dtype(from_numpy(array.dtype))
        value = oir.Value(name=f"x{k}", type=oir.TensorType(dtype), shape=oir.Shape(array.shape))
        values.append(value)
        if array.dtype.kind in "iu" and array.size <= MAX_TRACKED_ELEMENTS:
            value.const_value = oir.Tensor(array, name=value.name)
            initializers.append(value)
        else:
            inputs.append(value)
            feeds[f"x{k}"] = array
    own = len(theirs.inputs)
    outer = {
        v: x for v, x in zip(captured_values(theirs), values[own:], strict=True) if x is not None
    }
    outputs = [oir.Value(name=f"y{k}" if v.name else "") for k, v in enumerate(theirs.outputs)]
    wide = any(a is not None and a.dtype == np.float64 for a in operands)
    for made, said in zip(outputs, n.types, strict=True):
        if said.dtype is not None:
            dtype = onnx_dtype(F64 if wide and said.dtype.is_float else said.dtype)
            made.type = oir.TensorType(dtype)
    graph = oir.Graph(
        inputs,
        [v for v in outputs if v.name],
        nodes=[clone_node(theirs, values[:own], outputs, outer)],
        initializers=initializers,
        opset_imports=dict(source.model.opset_imports),
        name="node",
    )
    functions = [f.clone() for f in source.model.functions.values()]
    version = max(source.model.ir_version, OVERRIDABLE_SINCE_IR_VERSION)
    model = oir.Model(graph, ir_version=version, functions=functions)
    return bytes(to_model_proto(model).SerializeToString()), feeds
