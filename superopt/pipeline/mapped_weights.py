"""A model's large initializers as files of the cache on disk, for onnxruntime to map.

onnxruntime copies the weights of an .onnx file into memory of its own: opening it takes 1.7 times
the file's bytes. Weights that are external data it maps, so that those which its kernels pack are
given back afterwards, and of tables only the rows that are read are resident (bert_2l, 147 MiB:
a peak of 97 MiB instead of 247). The cache's files are never written in place, as the user's may
be, and are the same as those of packed constants in the original's layout.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import onnx

from superopt.cost.disk_cache import written
from superopt.cost.folder import constants_folder
from superopt.onnx_io.mapped import Region
from superopt.onnx_io.protos import tensors
from superopt.onnx_io.skeleton import PROTOBUF_LIMIT, blob_size, stub_index
from superopt.onnx_io.source import Source
from superopt.pipeline import constant_files, entries

MAPPED_TENSOR_BYTES: Final = 1 << 20  # from which on an initializer is a file
MAPPED_MODEL_BYTES: Final = 32 << 20  # of such initializers, from which on a model has files


@dataclass(frozen=True, slots=True)
class MappedModel:
    """data: of a ModelProto whose large initializers are external data in `folder`."""

    data: bytes
    folder: Path


def mapped_model(source: Source) -> MappedModel | None:
    """The model with its large initializers in files of the cache.

    None where these are small or external data already, and where the cache does not take them."""
    proto = source.skeleton.proto()
    large = {
        tensor.name: blob
        for tensor in proto.graph.initializer
        if (index := stub_index(tensor)) is not None
        and isinstance(blob := source.skeleton.blobs[index], Region)
        and blob.size >= MAPPED_TENSOR_BYTES
    }
    total = sum(blob.size for blob in large.values())
    inline = sum(map(blob_size, source.skeleton.blobs)) - total
    if source.has_external_data or total < MAPPED_MODEL_BYTES or not entries.fits(total):
        return None
    if inline + len(source.skeleton.data) > PROTOBUF_LIMIT:
        return None
    files: dict[str, str] = {}
    for name, region in large.items():
        digest = constant_files.keep_region(region)
        if digest is None:
            return None
        files[name] = f"{digest}{constant_files.SUFFIX}"
    for tensor in proto.graph.initializer:
        if tensor.name in files:
            _refer(tensor, files[tensor.name], large[tensor.name].size)
    for tensor, _, _ in tensors(proto):
        if (index := stub_index(tensor)) is not None:
            blob = source.skeleton.blobs[index]
            raw = bytes(blob.view()) if isinstance(blob, Region) else blob.tobytes()
            del tensor.external_data[:]
            tensor.data_location = onnx.TensorProto.DEFAULT
            tensor.raw_data = raw
    written(total)
    return MappedModel(proto.SerializeToString(), constants_folder())


def _refer(tensor: onnx.TensorProto, file: str, size: int) -> None:
    del tensor.external_data[:]
    for key, value in (("location", file), ("offset", "0"), ("length", str(size))):
        tensor.external_data.add(key=key, value=value)
