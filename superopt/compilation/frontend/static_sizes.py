"""A model with numbers in place of its inputs' symbolic sizes. Values computed from sizes, such as
the shape of a Reshape, and conditions of Ifs then become constants, and rewrites that ONNX Runtime
runs faster become possible."""

from __future__ import annotations

from collections.abc import Mapping

from superopt.errors import ModelError
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.import_.model import Model
from superopt.onnx_io.read.source import Source
from superopt.onnx_io.transform.constant_if import constant_conditions, fold_constant_ifs
from superopt.onnx_io.transform.row_scatters import (
    row_scatter_positions,
    row_scatters_to_scatter_nd,
)
from superopt.te.expr import index


def with_static_sizes(model: Model, sizes: Mapping[str, int]) -> Model | None:
    """Return the model at these sizes. sizes: by superopt's names. None if the model is invalid at
    them, or if some input sizes stay symbolic, as those of an input that is an output may."""
    out = with_given_sizes(model, sizes)
    some = (d for i in out.graph.inputs for d in i.type.shape or ()) if out is not None else ()
    return None if any(index.symbols(d) for d in some) else out


def with_given_sizes(model: Model, sizes: Mapping[str, int]) -> Model | None:
    """Return the model at these values of some of its sizes, by superopt's names. None if it is
    invalid at them."""
    try:
        made = import_model(_source_with_sizes(model, sizes))
        return row_scatters_to_scatter_nd(fold_constant_ifs(made))
    except ModelError:
        return None


def has_static_rewrites(model: Model) -> bool:
    """True if the model has rewrites for static sizes, whatever the sizes are."""
    return bool(constant_conditions(model) or row_scatter_positions(model))


def _source_with_sizes(model: Model, sizes: Mapping[str, int]) -> Source:
    source = model.source
    proto = source.skeleton.new_proto()
    types = {i.name: i.type for i in model.graph.inputs}
    for given in proto.graph.input:
        t = types.get(given.name)
        if t is None or t.dtype is None or t.shape is None:
            continue
        for d, n in zip(given.type.tensor_type.shape.dim, t.shape, strict=True):
            if index.symbols(n) <= sizes.keys():
                d.dim_value = index.evaluate(n, dict(sizes))
    return source.with_proto(proto)
