"""Types of values that no tensor expression gives: ONNX's own inference and the model's word."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import onnx
import onnx_ir as oir

from superopt.onnx_io.protos import bodies
from superopt.onnx_io.source import Source
from superopt.onnx_io.symbols import FileDim
from superopt.onnx_io.types import dtype_of
from superopt.te.dtype import DType

Declared = tuple[DType | None, tuple[FileDim, ...] | None]


def declared_types(source: Source) -> Callable[[str], Declared]:
    """A function from a value's name to its dtype and dims (None: unknown), inferred lazily."""
    table: dict[str, Declared] | None = None

    def look(name: str) -> Declared:
        nonlocal table
        if table is None:
            table = _infer(source)
        return table.get(name, (None, None))

    return look


def described(source: Source) -> frozenset[str]:
    """The values that the file's lists of value_info name, those of subgraphs included."""
    return frozenset(
        info.name for place in bodies(source.skeleton.proto()) for info in place.body.value_info
    )


def _infer(source: Source) -> dict[str, Declared]:
    model = source.skeleton.proto()
    with suppress(Exception):  # what inference cannot do is unknown, not an error
        model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    names = {d.dim_param for v in model.graph.input for d in v.type.tensor_type.shape.dim}
    out: dict[str, Declared] = {}
    for v in (*model.graph.value_info, *model.graph.output):
        kind = v.type.tensor_type
        if not v.type.HasField("tensor_type") or dtype_of(kind.elem_type) is None:
            continue
        dims: tuple[FileDim, ...] | None = None
        if kind.HasField("shape"):
            dims = tuple(_dim(d, names) for d in kind.shape.dim)
        out[v.name] = (dtype_of(oir.DataType(kind.elem_type)), dims)
    return out


def _dim(d: onnx.TensorShapeProto.Dimension, names: set[str]) -> FileDim:
    """A size of a result: a name counts only where an input binds it, a number from 0 on."""
    if d.HasField("dim_value"):
        return int(d.dim_value) if d.dim_value >= 0 else None
    return str(d.dim_param) if d.dim_param in names else None
