"""The protocol between a process and its worker.

A frame is a JSON header and any number of byte strings, each preceded by its length. Arrays are
sent as raw elements, with dtype and shape in the header: no received data is executed.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from typing import IO, Any

import numpy as np

from superopt.ort.tensors import BY_DTYPE_NAME, Value, as_native

Header = dict[str, Any]  # JSON; its fields are described where a frame is made and where it is read
Blob = bytes | bytearray | memoryview

READY = b"the superopt worker is ready\n"
"""The line that a worker writes before its first frame."""

_LENGTH = struct.Struct("<Q")


def send(stream: IO[bytes], header: Header, blobs: Sequence[Blob] = ()) -> None:
    """Write one frame. Raises OSError if nobody reads."""
    text = json.dumps({**header, "blobs": [len(blob) for blob in blobs]}).encode()
    stream.write(_LENGTH.pack(len(text)))
    stream.write(text)
    for blob in blobs:
        stream.write(blob)
    stream.flush()


def receive(stream: IO[bytes]) -> tuple[Header, list[bytearray]]:
    """Read one frame. Raises EOFError at the end of the stream, also within a frame."""
    (length,) = _LENGTH.unpack(_read_exactly(stream, _LENGTH.size))
    header: Header = json.loads(_read_exactly(stream, length))
    return header, [_read_exactly(stream, size) for size in header.pop("blobs")]


def _read_exactly(stream: IO[bytes], size: int) -> bytearray:
    data = bytearray(size)
    view, done = memoryview(data), 0
    while done < size:
        count = stream.readinto(view[done:])  # type: ignore[attr-defined]
        if not count:
            raise EOFError(f"the stream ended after {done} of {size} bytes")
        done += count
    return data


def pack_values(values: Mapping[str, Value]) -> tuple[list[Header], list[Blob]]:
    """Return a header for each value, and the elements, for a frame."""
    blobs: list[Blob] = []
    return [{"name": name, **_pack(value, blobs)} for name, value in values.items()], blobs


def unpack_values(headers: Sequence[Header], blobs: Sequence[bytearray]) -> dict[str, Value]:
    """Return the inverse of `pack_values`; the arrays are writable and share the blobs' memory."""
    return {header["name"]: _unpack(header, blobs) for header in headers}


def _pack(value: Value, blobs: list[Blob]) -> Header:
    if value is None:
        return {"none": True}
    if isinstance(value, list):
        return {"items": [_pack(item, blobs) for item in value]}
    if not isinstance(
        value, np.ndarray | np.generic
    ):  # a map, say: its reader must know that it is left out
        raise TypeError(f"a {type(value).__name__} is neither a tensor nor a sequence of tensors")
    array = as_native(value)
    shape = list(array.shape)
    if array.dtype == object:
        return {"strings": [str(item) for item in array.ravel().tolist()], "shape": shape}
    blobs.append(array.reshape(-1).view(np.uint8).data)
    return {"dtype": array.dtype.name, "shape": shape, "blob": len(blobs) - 1}


def _unpack(header: Header, blobs: Sequence[bytearray]) -> Value:
    if "none" in header:
        return None
    if "items" in header:
        return [_unpack(item, blobs) for item in header["items"]]
    shape = tuple(header["shape"])
    if "strings" in header:
        strings = np.empty(len(header["strings"]), dtype=object)
        strings[:] = header["strings"]
        return strings.reshape(shape)
    name = header["dtype"]
    dtype = BY_DTYPE_NAME[name].dtype if name in BY_DTYPE_NAME else np.dtype(name)
    return np.frombuffer(blobs[header["blob"]], dtype=np.uint8).view(dtype).reshape(shape)
