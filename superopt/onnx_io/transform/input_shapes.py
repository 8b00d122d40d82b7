"""Give static shapes to a model's inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import onnx

from superopt.errors import UsageError
from superopt.onnx_io.read.source import Source


def with_input_shapes(source: Source, shapes: Mapping[str, Sequence[int]]) -> Source:
    """Return the model with these shapes of inputs. A symbolic dimension gets its value in all
    declarations of the graph. Raises UsageError for an unknown input, another rank, a size that is
    declared otherwise, or two values of one symbol."""
    proto = onnx.ModelProto()
    proto.CopyFrom(source.skeleton.shared_proto)
    inputs = {v.name: v for v in proto.graph.input}
    values: dict[str, int] = {}
    for name, shape in shapes.items():
        if not name and len(inputs) == 1:
            (name,) = inputs
        if name not in inputs:
            raise UsageError(
                f"{source.label} has no input {name!r}", f"its inputs are {', '.join(inputs)}",
                "name one of them",
            )  # fmt: skip
        _set_shape(inputs[name], tuple(shape), values)
    for dim in _dimensions(proto.graph):
        if dim.dim_param in values:
            dim.dim_value = values[dim.dim_param]
    return source.with_proto(proto)


def _set_shape(value: onnx.ValueInfoProto, shape: tuple[int, ...], values: dict[str, int]) -> None:
    tensor = value.type.tensor_type
    dims = list(tensor.shape.dim)
    if not tensor.HasField("shape"):
        dims = [tensor.shape.dim.add() for _ in shape]
    if len(dims) != len(shape):
        raise UsageError(
            f"{value.name} has {len(dims)} dimensions, not {len(shape)}",
            "a new shape has the same rank", "give a size for each dimension",
        )  # fmt: skip
    for dim, size in zip(dims, shape, strict=True):
        known = dim.dim_value if dim.HasField("dim_value") else None
        if dim.dim_param:
            known = values.setdefault(dim.dim_param, size)
        if size < 0 or (known is not None and known != size):
            raise UsageError(
                f"{value.name} cannot have the shape {shape}",
                "a size is negative" if size < 0 else f"a size of {known} is declared, not {size}",
                "change only symbolic or unknown dimensions, consistently",
            )  # fmt: skip
        if not dim.dim_param:
            dim.dim_value = size


def _dimensions(graph: onnx.GraphProto) -> Iterator[onnx.TensorShapeProto.Dimension]:
    for value in (*graph.input, *graph.output, *graph.value_info):
        yield from value.type.tensor_type.shape.dim
