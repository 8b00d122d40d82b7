"""A model as a small ModelProto without its large tensors, and those tensors beside it.

Every input (a file, bytes, a ModelProto, an onnx_ir model) is converted to this form, checked in it
and written from it. Weights are neither parsed nor copied.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, Final, TypeAlias

import onnx
import onnx_ir as ir

from superopt import guard
from superopt.errors import ModelError
from superopt.onnx_io.read import wire
from superopt.onnx_io.read.external_data import external_entries, open_region
from superopt.onnx_io.read.mapped_file import Backing, Region
from superopt.onnx_io.read.protos import first_non_utf8, stored_tensors
from superopt.onnx_io.read.region_tensors import byte_size

# Up to this many bytes a tensor stays in the skeleton: shape inference reads the small ones.
MAX_INLINE_BYTES: Final = 16 << 10
PROTOBUF_LIMIT: Final = 2**31 - 1

# Numbers of TensorProto.DataType whose bytes can be told from shape and number alone.
FIXED_SIZE_DTYPES: Final[Mapping[int, ir.DataType]] = {
    dtype.value: dtype for dtype in ir.DataType if dtype.name not in ("UNDEFINED", "STRING")
}
# FLOAT6 stays whole, because the checker looks at its padding bits.
STRIPPABLE_DTYPES: Final = frozenset(
    n for n, dtype in FIXED_SIZE_DTYPES.items() if dtype.bitwidth != 6
)

# Times the bytes of a skeleton that reading it takes: its message, copies and Python objects. 8 for
# strings, 17 for lists of numbers (measured: 200 MB of either).
PARSED_FACTOR: Final = 8

# Nodes, counting those of a local function at every call.
MAX_NODES: Final = 1_000_000

Blob: TypeAlias = Region | ir.TensorProtocol


@dataclass(frozen=True, eq=False)
class Skeleton:
    """`data` is the bytes of a ModelProto; its i-th stub stands for `blobs[i]`.

    `files` are the external data files by location, including those of small tensors. Not slotted,
    because `shared_proto` is cached.
    """

    data: bytes
    blobs: tuple[Blob, ...]
    files: Mapping[str, Backing] = field(default_factory=dict)

    def new_proto(self) -> onnx.ModelProto:
        """Return a new ModelProto, with stubs."""
        return parse_model(self.data)

    @cached_property
    def shared_proto(self) -> onnx.ModelProto:
        """The shared ModelProto, with stubs; read-only."""
        return parse_model(self.data)


def parse_model(data: bytes) -> onnx.ModelProto:
    """Parse a ModelProto. Raises wire.Malformed."""
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except Exception as error:  # protobuf's DecodeError, from a package without types
        raise wire.Malformed(str(error)) from None
    return proto


def too_many_nodes_error(label: str, expanded: bool = False) -> ModelError:
    """Return the error for a model with more than MAX_NODES nodes. expanded: after inlining local
    functions."""
    which = "with its local functions expanded it has" if expanded else "it has"
    return ModelError(
        f"{label}: the model is too large",
        f"{which} more than {MAX_NODES} nodes",
        "split it into several models",
    )


def blob_size(blob: Blob) -> int:
    return blob.size if isinstance(blob, Region) else blob.nbytes


def copy_blob(blob: Blob, file: BinaryIO) -> None:
    """Append the tensor's bytes, as ONNX stores them, to a file."""
    if isinstance(blob, Region):
        blob.copy_to(file)
    else:
        file.write(blob.tobytes())


def stub_fields(index: int) -> bytes:
    """Return the TensorProto fields that make a tensor stub number `index`."""
    return wire.external_fields({"location": f"{wire.STUB_PREFIX}{index}"})


def stub_index(tensor: onnx.TensorProto) -> int | None:
    """Return the index of the blob that this tensor stands for, or None if it has its own data."""
    if tensor.data_location == onnx.TensorProto.EXTERNAL and tensor.external_data:
        location = tensor.external_data[0].value
        if location.startswith(wire.STUB_PREFIX):
            return int(location.removeprefix(wire.STUB_PREFIX))
    return None


def skeleton_from_bytes(backing: Backing, folder: Path | None, label: str) -> Skeleton:
    """Build a skeleton from the bytes of a model file; external data is looked up in `folder`.

    Raises ModelError if the bytes are not a model, or its external data is rejected.
    """
    try:
        large = len(backing.view) > MAX_NODES  # a node takes two bytes at least
        if large and wire.count_nodes(backing.view, MAX_NODES) > MAX_NODES:
            raise too_many_nodes_error(label)
        data, spans = wire.strip_tensors(backing.view, MAX_INLINE_BYTES, STRIPPABLE_DTYPES)
        guard.require_memory(PARSED_FACTOR * len(data), f"reading {label}")
        proto = parse_model(data)
    except wire.Malformed as error:
        raise ModelError(
            f"{label}: this is not a readable ONNX file",
            f"its {len(backing.view)} bytes are not a protobuf message: {error}",
            "export or download the model again: the file is cut short, damaged or something else",
        ) from None
    return complete_skeleton(
        data, proto, [Region(backing, s.offset, s.size) for s in spans], folder, label
    )


def skeleton_from_proto(
    proto: onnx.ModelProto, folder: Path | None, label: str
) -> tuple[Skeleton, Backing | None]:
    """Build a skeleton from a ModelProto, which is not changed. Also return its serialized bytes,
    if they are below protobuf's limit."""
    weights = sum(expected_bytes(tensor) or 0 for tensor in proto.graph.initializer)
    if weights < PROTOBUF_LIMIT:
        try:
            data: bytes = proto.SerializeToString()
        except Exception as error:  # protobuf's EncodeError, from a package without types
            raise ModelError(
                f"{label}: this model cannot be serialized",
                f"protobuf says: {error}",
                "make initializers of its large tensors",
            ) from None
        backing = Backing(label, memoryview(data))
        return skeleton_from_bytes(backing, folder, label), backing
    blobs: list[Blob] = []
    copy = onnx.ModelProto()
    _copy_fields(proto, copy, skip="graph")
    _copy_fields(proto.graph, copy.graph, skip="initializer")
    for tensor in proto.graph.initializer:
        new = copy.graph.initializer.add()
        size = expected_bytes(tensor) or 0
        if (
            size <= MAX_INLINE_BYTES
            or tensor.data_type not in STRIPPABLE_DTYPES
            or len(tensor.raw_data) != size
        ):
            new.CopyFrom(tensor)
            continue
        new.name = tensor.name
        new.data_type = tensor.data_type
        new.dims.extend(tensor.dims)
        new.doc_string = tensor.doc_string
        new.metadata_props.MergeFrom(tensor.metadata_props)
        new.MergeFromString(stub_fields(len(blobs)))
        blobs.append(ir.TensorProtoTensor(tensor))
    return complete_skeleton(copy.SerializeToString(), copy, blobs, folder, label), None


def _copy_fields(
    message: onnx.ModelProto | onnx.GraphProto, into: onnx.ModelProto | onnx.GraphProto, skip: str
) -> None:
    for descriptor, value in message.ListFields():
        if descriptor.name == skip:
            continue
        if isinstance(value, int | str):
            setattr(into, descriptor.name, value)
        else:
            getattr(into, descriptor.name).MergeFrom(value)


def complete_skeleton(
    data: bytes, proto: onnx.ModelProto, blobs: Sequence[Blob], folder: Path | None, label: str
) -> Skeleton:
    """Return the skeleton of `proto` (serialized: `data`), with external data from `folder`.

    External tensors become stubs like all large ones; small ones are inlined.
    """
    if (text := first_non_utf8(proto)) is not None:
        raise ModelError(
            f"{label}: a name in this model is not text",
            f"its bytes are not UTF-8: {text[:40]!r}",
            "export the model again: the file is damaged",
        )
    blobs = list(blobs)
    made = len(blobs)
    files: dict[str, Backing] = {}
    claimed: set[int] = set()
    for tensor, name, dense in stored_tensors(proto):
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        entries = external_entries(tensor, label)
        location = entries.get("location", "")
        if location.startswith(wire.STUB_PREFIX):
            index = location.removeprefix(wire.STUB_PREFIX)
            if not index.isdecimal() or int(index) >= made or int(index) in claimed or not dense:
                raise ModelError(
                    f"{label}: the external data of {name} is refused",
                    f"its location {location!r} is reserved",
                    "save the model with another name for its data file",
                )
            claimed.add(int(index))
            continue
        if folder is None or not dense:
            raise ModelError(
                f"{label}: the external data of {name} cannot be read",
                "only initializers and tensor attributes may have external data"
                if not dense
                else f"it is in {location!r}, but the folder of the model is not known",
                "store the tensor inside the model"
                if not dense
                else "give the path of the model's file, or load its external data first",
            )
        region = open_region(
            folder, entries, size=expected_bytes(tensor), tensor=name, label=label, files=files
        )
        tensor.ClearField("external_data")
        tensor.ClearField("data_location")
        if region.size <= MAX_INLINE_BYTES:
            tensor.raw_data = bytes(region.view())
        else:
            tensor.MergeFromString(stub_fields(len(blobs)))
            blobs.append(region)
    if files:
        data = proto.SerializeToString()
    return Skeleton(data, tuple(blobs), files)


def expected_bytes(tensor: onnx.TensorProto) -> int | None:
    """Return the size in bytes by shape and dtype, or None if they do not determine it."""
    dtype = FIXED_SIZE_DTYPES.get(tensor.data_type)
    if dtype is None or any(dim < 0 for dim in tensor.dims):
        return None
    return byte_size(dtype, tuple(tensor.dims))
