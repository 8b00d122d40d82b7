"""Tensors over regions of mapped files (mapped_file.py)."""

from typing import Final

import numpy as np
import onnx_ir as ir

from superopt.onnx_io.read.mapped_file import Region

_META_KEY: Final = "superopt.region"


def byte_size(dtype: ir.DataType, dims: tuple[int, ...]) -> int:
    """Return the size in bytes of a tensor's data as ONNX stores it: sub-byte elements are
    packed."""
    elements = 1
    for dim in dims:
        elements *= dim
    return (elements * dtype.bitwidth + 7) // 8


def tensor_from_region(
    region: Region,
    dtype: ir.DataType,
    dims: tuple[int, ...],
    name: str | None,
    doc_string: str | None = None,
    metadata: dict[str, str] | None = None,
) -> ir.TensorProtocol:
    """Return a read-only tensor over the region's bytes, which are read on access.

    `region_of` returns the region. The array may be unaligned, since protobuf aligns nothing.
    """
    tensor: ir.TensorProtocol
    if dtype.bitwidth < 8:
        packed = np.frombuffer(region.view(), np.uint8)
        tensor = ir.PackedTensor(
            packed,
            dtype,
            shape=ir.Shape(dims),
            name=name,
            doc_string=doc_string,
            metadata_props=metadata,
        )
    else:
        array = np.frombuffer(region.view(), dtype.numpy()).reshape(dims)
        tensor = ir.Tensor(array, dtype, name=name, doc_string=doc_string, metadata_props=metadata)
    tensor.meta[_META_KEY] = region
    return tensor


def region_of(tensor: ir.TensorProtocol) -> Region | None:
    """Return the region of a tensor that `tensor_from_region` made, else None."""
    region = tensor.meta.get(_META_KEY)
    return region if isinstance(region, Region) else None
