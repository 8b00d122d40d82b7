"""Convert between skeletons and onnx_ir models; large tensors are not touched."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import onnx
import onnx_ir as ir

from superopt import guard
from superopt.errors import ModelError, OutOfTime
from superopt.onnx_io.read import wire
from superopt.onnx_io.read.external_data import open_region
from superopt.onnx_io.read.mapped_file import Backing, Region
from superopt.onnx_io.read.packed_parts import pack_unsupported, to_model_proto
from superopt.onnx_io.read.protos import stored_tensors
from superopt.onnx_io.read.region_tensors import region_of, tensor_from_region
from superopt.onnx_io.read.skeleton import (
    MAX_INLINE_BYTES,
    STRIPPABLE_DTYPES,
    Blob,
    Skeleton,
    complete_skeleton,
)

LEAST_SECONDS_PER_ENTRY: Final = 12e-6  # that onnx_ir takes for a node; measured 25e-6
_TENSOR: Final = ir.AttributeType.TENSOR


@dataclass(frozen=True, slots=True, eq=False)
class _TensorHolder:
    """A tensor of a model, and functions that replace and restore it."""

    tensor: ir.TensorProtocol
    assign: Callable[[ir.TensorProtocol], None]
    restore: Callable[[], None]


def skeleton_from_model(model: ir.Model, label: str) -> Skeleton:
    """Build a skeleton from an onnx_ir model, which is not changed.

    External tensors are looked up under their own base_dir. Raises ModelError if they are rejected,
    or if the model cannot be serialized.
    """
    blobs: list[Blob] = []
    files: dict[str, dict[str, Backing]] = {}
    # onnx_ir serializes what the model holds, so for that long it holds stubs.
    undo: list[_TensorHolder] = []
    try:
        for seat in list(_tensor_holders(model)):
            if (new := _make_stub(seat.tensor, blobs, files, label)) is not None:
                undo.append(seat)
                seat.assign(new)
        proto = to_model_proto(model)
        _drop_repeated_metadata(proto)
        data = proto.SerializeToString()
    except (ModelError, OutOfTime, MemoryError):
        raise
    except Exception as error:  # onnx_ir raises errors of many kinds, and wraps them in its own
        raise _unrepresentable_error(label, error) from error
    finally:
        for seat in undo:
            seat.restore()
    found = {name: file for those in files.values() for name, file in those.items()}
    return replace(complete_skeleton(data, proto, blobs, None, label), files=found)


def model_from_skeleton(skeleton: Skeleton, label: str) -> ir.Model:
    """Build the onnx_ir model, whose large tensors are views of the bytes in their files.

    Raises ModelError for what onnx_ir would drop or cannot represent.
    """
    proto = skeleton.new_proto()
    pack_unsupported(proto)
    if proto.training_info or proto.graph.sparse_initializer:
        part = "training_info" if proto.training_info else "a sparse initializer"
        raise ModelError(
            f"{label}: {part} cannot be carried through",
            "it would be missing from the written model",
            "export the model for inference, with dense initializers",
        )
    entries = sum(map(len, (proto.graph.node, proto.graph.initializer, proto.graph.value_info)))
    work = f"converting {entries} nodes, initializers and types"
    guard.require_time(entries * LEAST_SECONDS_PER_ENTRY, f"reading {label}", work)
    try:
        model = ir.from_proto(proto)
        for seat in list(_tensor_holders(model)):
            guard.check_time(f"reading {label}")
            if isinstance(seat.tensor, ir.ExternalTensor):
                index = int(str(seat.tensor.location).removeprefix(wire.STUB_PREFIX))
                seat.assign(_fill_stub(seat.tensor, skeleton.blobs[index]))
    except (OutOfTime, MemoryError):
        raise
    except Exception as error:  # onnx_ir raises errors of many kinds, and wraps them in its own
        raise _unrepresentable_error(label, error) from error
    return model


def _drop_repeated_metadata(proto: onnx.ModelProto) -> None:
    """Drop metadata that onnx_ir writes twice for tensors that it keeps as protos."""
    for tensor, _, _ in stored_tensors(proto):
        if len(tensor.metadata_props) > 1:
            entries = {entry.key: entry.value for entry in tensor.metadata_props}
            del tensor.metadata_props[:]
            for key, value in entries.items():
                tensor.metadata_props.add(key=key, value=value)


def _initializer_holder(value: ir.Value, tensor: ir.TensorProtocol) -> _TensorHolder:
    def put(new: ir.TensorProtocol) -> None:
        value.const_value = new

    return _TensorHolder(tensor, put, lambda: put(tensor))


def _attribute_holder(node: ir.Node, attribute: ir.Attr) -> _TensorHolder:
    def put(new: ir.TensorProtocol) -> None:
        restore(ir.AttrTensor(attribute.name, new, doc_string=attribute.doc_string))

    def restore(old: ir.Attr = attribute) -> None:
        node.attributes[attribute.name] = old

    return _TensorHolder(attribute.as_tensor(), put, restore)


def _tensor_holders(model: ir.Model) -> Iterator[_TensorHolder]:
    """Yield the dense tensors of the model."""
    graphs: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    while graphs:
        graph = graphs.pop()
        if isinstance(graph, ir.Graph):
            for value in graph.initializers.values():
                if value.const_value is not None:
                    yield _initializer_holder(value, value.const_value)
        for node in graph:
            for attribute in node.attributes.values():
                if attribute.is_ref():
                    continue
                if attribute.type == _TENSOR:
                    yield _attribute_holder(node, attribute)
                elif attribute.type == ir.AttributeType.GRAPH:
                    graphs.append(attribute.as_graph())
                elif attribute.type == ir.AttributeType.GRAPHS:
                    graphs.extend(attribute.as_graphs())


def _make_stub(
    tensor: ir.TensorProtocol, blobs: list[Blob], files: dict[str, dict[str, Backing]], label: str
) -> ir.TensorProtocol | None:
    """Return the stub for a tensor, or None for a tensor that stays in the skeleton."""
    blob: Blob
    if isinstance(tensor, ir.ExternalTensor):
        entries = {"location": str(tensor.location)}
        entries |= {"offset": str(tensor.offset)} if tensor.offset is not None else {}
        entries |= {"length": str(tensor.length)} if tensor.length is not None else {}
        base = str(tensor.base_dir)
        blob = open_region(
            Path(base or "."),
            entries,
            size=tensor.nbytes,
            tensor=str(tensor.name),
            label=label,
            files=files.setdefault(base, {}),
        )
        if blob.size <= MAX_INLINE_BYTES:
            return tensor_from_region(blob, tensor.dtype, _dims(tensor), *_tensor_metadata(tensor))
    elif tensor.dtype.value not in STRIPPABLE_DTYPES or tensor.nbytes <= MAX_INLINE_BYTES:
        return None
    elif isinstance(tensor, ir.TensorProtoTensor) and len(tensor.raw.raw_data) != tensor.nbytes:
        return None  # in another field, or damaged: left for the checks
    else:
        blob = region_of(tensor) or tensor
    blobs.append(blob)
    name, doc_string, metadata = _tensor_metadata(tensor)
    return ir.ExternalTensor(
        f"{wire.STUB_PREFIX}{len(blobs) - 1}",
        None,
        None,
        tensor.dtype,
        shape=ir.Shape(_dims(tensor)),
        name=name or "",
        doc_string=doc_string,
        metadata_props=metadata,
    )


def _fill_stub(stub: ir.ExternalTensor, blob: Blob) -> ir.TensorProtocol:
    """Return the tensor that a stub stands for."""
    name, doc_string, metadata = _tensor_metadata(stub)
    if isinstance(blob, Region):
        return tensor_from_region(blob, stub.dtype, _dims(stub), name, doc_string, metadata)
    return ir.LazyTensor(
        lambda: blob,
        stub.dtype,
        ir.Shape(_dims(stub)),
        name=name,
        doc_string=doc_string,
        metadata_props=metadata,
    )


def _dims(tensor: ir.TensorProtocol) -> tuple[int, ...]:
    return tuple(int(dim) for dim in tensor.shape.numpy())


def _tensor_metadata(tensor: ir.TensorProtocol) -> tuple[str | None, str | None, dict[str, str]]:
    return tensor.name, tensor.doc_string, dict(tensor.metadata_props)


def _unrepresentable_error(label: str, error: BaseException) -> ModelError:
    cause = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    return ModelError(
        f"{label}: the model cannot be represented",
        f"onnx_ir says: {' '.join(str(cause).split())[:300]}",
        "rewrite the part named above without this feature",
    )
