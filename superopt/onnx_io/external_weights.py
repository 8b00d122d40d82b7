"""A model whose large initializers are external data, in files that already hold them."""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from superopt.onnx_io.read.mapped_file import Region
from superopt.onnx_io.read.protos import stored_tensors
from superopt.onnx_io.read.skeleton import PROTOBUF_LIMIT, blob_size, stub_index
from superopt.onnx_io.read.source import Source


def large_initializers(source: Source, least_bytes: int) -> dict[str, Region]:
    """The bytes of the graph's initializers of so many bytes or more, by name; none of a model that
    has external data."""
    if source.has_external_data:
        return {}
    out = {}
    for tensor in source.skeleton.shared_proto.graph.initializer:
        if (index := stub_index(tensor)) is not None:
            blob = source.skeleton.blobs[index]
            if isinstance(blob, Region) and blob.size >= least_bytes:
                out[tensor.name] = blob
    return out


def with_external_weights(source: Source, files: Mapping[str, str]) -> bytes | None:
    """The bytes of a ModelProto whose initializers in `files` are external data.

    files: names of files, in the folder that the reader gets, by names of initializers; each
    begins with the initializer's bytes. None where the rest is too large for protobuf."""
    proto, blobs = source.skeleton.new_proto(), source.skeleton.blobs
    outside = 0
    for tensor in proto.graph.initializer:
        index = stub_index(tensor)
        if tensor.name in files and index is not None:
            outside += blob_size(blobs[index])
            _refer(tensor, files[tensor.name], blob_size(blobs[index]))
    if len(source.skeleton.data) + sum(map(blob_size, blobs)) - outside > PROTOBUF_LIMIT:
        return None
    for tensor, _, _ in stored_tensors(proto):
        if (index := stub_index(tensor)) is not None:
            blob = blobs[index]
            raw = bytes(blob.view()) if isinstance(blob, Region) else blob.tobytes()
            del tensor.external_data[:]
            tensor.data_location = onnx.TensorProto.DEFAULT
            tensor.raw_data = raw
    data: bytes = proto.SerializeToString()
    return data


def _refer(tensor: onnx.TensorProto, file: str, size: int) -> None:
    del tensor.external_data[:]
    for key, value in (("location", file), ("offset", "0"), ("length", str(size))):
        tensor.external_data.add(key=key, value=value)
