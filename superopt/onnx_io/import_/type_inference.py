"""Types of values without a tensor expression: ONNX shape inference and the model's
declarations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np
import onnx
import onnx_ir as oir
from onnx import helper, numpy_helper

from superopt.ir import graph
from superopt.onnx_io.import_.dtypes import dtype_of, onnx_dtype
from superopt.onnx_io.import_.symbols import FileDim
from superopt.onnx_io.read.protos import all_bodies
from superopt.onnx_io.read.source import Source
from superopt.te.expr.dtype import STRING, DType

GRAPH, GRAPHS = oir.AttributeType.GRAPH, oir.AttributeType.GRAPHS
MAX_CONSTANT_BYTES = 1024  # bytes of a constant on which sizes may hang
DeclaredType = tuple[DType | None, tuple[FileDim, ...] | None]


def type_lookup(source: Source) -> Callable[[str], DeclaredType]:
    """Return a lazy lookup from a value's name to its dtype and dims (None: unknown)."""
    table: dict[str, DeclaredType] | None = None

    def look(name: str) -> DeclaredType:
        nonlocal table
        if table is None:
            table = _infer_types(source)
        return table.get(name, (None, None))

    return look


def infer_result_types(
    n: oir.Node, version: int, operands: Sequence[graph.Value | None]
) -> list[DeclaredType]:
    """Infer the output types of one node whose operands have known ranks; symbolic sizes are
    unknown ones. Inference on the whole model may miss these if they depend on values computed from
    constants, or on operators that it does not know. Returns an empty list if inference fails."""
    if any(a.type in (GRAPH, GRAPHS) for a in n.attributes.values()) or n.domain:
        return []
    kinds: dict[str, onnx.TypeProto] = {}
    held: dict[str, onnx.TensorProto] = {}
    for x, v in zip(n.inputs, operands, strict=False):  # behind these what subgraphs read
        if x is None or x.name is None or v is None:
            continue
        dtype = v.type.dtype
        if dtype is None or v.type.shape is None:
            return []
        shape = [d if isinstance(d, int) else None for d in v.type.shape]
        kinds[x.name] = helper.make_tensor_type_proto(int(onnx_dtype(dtype)), shape)
        if isinstance(v, graph.Constant) and v.nbytes <= MAX_CONSTANT_BYTES and dtype != STRING:
            held[x.name] = numpy_helper.from_array(np.asarray(v.load()))
    try:
        schema, proto = onnx.defs.get_schema(n.op_type, version, n.domain), oir.to_proto(n)
        found = onnx.shape_inference.infer_node_outputs(schema, proto, kinds, held)
    except Exception:  # of several types
        return []
    empty = onnx.TypeProto()
    return [_declared_type(found.get(v.name or "", empty), set()) for v in n.outputs]


def value_info_names(source: Source) -> frozenset[str]:
    """Return the names listed in the file's value_info, subgraphs included."""
    return frozenset(
        info.name
        for place in all_bodies(source.skeleton.shared_proto)
        for info in place.body.value_info
    )


def _infer_types(source: Source) -> dict[str, DeclaredType]:
    model = source.skeleton.shared_proto
    for keep_declared in (True, False):
        if not keep_declared:  # they contradict the operators: onnxruntime believes these
            model = source.skeleton.new_proto()
            _clear_declared_types(model)
        with suppress(Exception):  # what inference cannot do is unknown, not an error
            model = onnx.shape_inference.infer_shapes(model, data_prop=True)
            break
    names = {d.dim_param for v in model.graph.input for d in v.type.tensor_type.shape.dim}
    out: dict[str, DeclaredType] = {}
    for v in (*model.graph.value_info, *model.graph.output):
        if (found := _declared_type(v.type, names)) != (None, None):
            out[v.name] = found
    return out


def _clear_declared_types(model: onnx.ModelProto) -> None:
    """Clear the declared types of all values except inputs, in place."""
    del model.graph.value_info[:]
    for v in model.graph.output:
        v.ClearField("type")


def _declared_type(t: onnx.TypeProto, names: set[str]) -> DeclaredType:
    kind = t.tensor_type
    if not t.HasField("tensor_type") or dtype_of(kind.elem_type) is None:
        return None, None
    dims = tuple(_result_dim(d, names) for d in kind.shape.dim) if kind.HasField("shape") else None
    return dtype_of(oir.DataType(kind.elem_type)), dims


def _result_dim(d: onnx.TensorShapeProto.Dimension, names: set[str]) -> FileDim:
    """Return a dimension of a result: names count only if an input binds them, numbers from 0
    on."""
    if d.HasField("dim_value"):
        return int(d.dim_value) if d.dim_value >= 0 else None
    return str(d.dim_param) if d.dim_param in names else None
