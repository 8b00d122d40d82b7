"""Types of values that no tensor expression gives: ONNX's own inference and the model's word."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import onnx
import onnx_ir as oir

from superopt.onnx_io.source import Source
from superopt.onnx_io.types import dtype_of
from superopt.te.dtype import DType

Declared = tuple[DType | None, tuple[int | str | None, ...] | None]


def declared_types(source: Source) -> Callable[[str], Declared]:
    """A function from a value's name to its dtype and dims (None: unknown), inferred lazily."""
    table: dict[str, Declared] | None = None

    def look(name: str) -> Declared:
        nonlocal table
        if table is None:
            table = _infer(source)
        return table.get(name, (None, None))

    return look


def _infer(source: Source) -> dict[str, Declared]:
    model = source.skeleton.proto()
    with suppress(Exception):  # what inference cannot do is unknown, not an error
        model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    declared = {d.dim_param for v in model.graph.input for d in v.type.tensor_type.shape.dim}
    out: dict[str, Declared] = {}
    for v in (*model.graph.value_info, *model.graph.output):
        if not v.type.HasField("tensor_type"):
            continue
        kind = v.type.tensor_type
        dims: tuple[int | str | None, ...] | None = None
        if kind.HasField("shape"):
            dims = tuple(
                d.dim_value
                if d.HasField("dim_value")
                else (d.dim_param if d.dim_param in declared else None)
                for d in kind.shape.dim
            )
        out[v.name] = (dtype_of(oir.DataType(kind.elem_type)), dims)
    return out
