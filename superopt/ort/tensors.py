"""Conversion of tensors to and from onnxruntime.

numpy arrays represent every dtype of ONNX. Those that numpy lacks (bfloat16, 8-bit floats, 4-bit
integers) come from ml_dtypes, which stores one element in one or two bytes, while onnxruntime packs
two 4-bit elements in a byte, low nibble first.
"""

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from superopt.errors import ModelError

Array = npt.NDArray[Any]
Value = Array | list["Value"] | None
"""A tensor, a sequence of them, or an absent optional."""
Feeds = Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class ExtendedDtype:
    """A dtype that numpy lacks: its ml_dtypes name, its ONNX code and its width in bits."""

    name: str
    code: int
    bits: int

    @property
    def dtype(self) -> np.dtype[Any]:
        # Importing ml_dtypes takes 8 ms, and most models do not need it.
        found: np.dtype[Any] = np.dtype(getattr(import_module("ml_dtypes"), self.name))
        return found


# By onnxruntime's own name, as in `tensor(bfloat16)`.
EXTENDED_DTYPES = {
    "bfloat16": ExtendedDtype("bfloat16", 16, 16),
    "float8e4m3fn": ExtendedDtype("float8_e4m3fn", 17, 8),
    "float8e4m3fnuz": ExtendedDtype("float8_e4m3fnuz", 18, 8),
    "float8e5m2": ExtendedDtype("float8_e5m2", 19, 8),
    "float8e5m2fnuz": ExtendedDtype("float8_e5m2fnuz", 20, 8),
    "uint4": ExtendedDtype("uint4", 21, 4),
    "int4": ExtendedDtype("int4", 22, 4),
}
BY_DTYPE_NAME = {foreign.name: foreign for foreign in EXTENDED_DTYPES.values()}


def element_name(type_text: str) -> str:
    """Return `float` for `tensor(float)`; the text itself for a type that is not a tensor."""
    if type_text.startswith("tensor(") and type_text.endswith(")"):
        return type_text.removeprefix("tensor(").removesuffix(")")
    return type_text


def as_native(array: Array) -> Array:
    """Convert an array for onnxruntime: C order, native byte order, strings as objects.

    Raises ModelError for bytes that are not UTF-8, as ONNX strings must be.
    """
    array = np.asarray(array)  # arithmetic turns 0-d arrays into numpy scalars
    if array.dtype.kind == "S":
        flat = [_decode_text(item) for item in array.ravel().tolist()]
        strings = np.empty(array.shape, dtype=object)
        strings.reshape(-1)[:] = flat
        return strings
    if array.dtype.kind in "UT":
        array = array.astype(object)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    # Not np.ascontiguousarray, which turns a scalar into a vector.
    return array if array.flags.c_contiguous else array.copy(order="C")


def _decode_text(item: bytes) -> str:
    try:
        return item.decode()
    except UnicodeDecodeError as error:
        raise ModelError(
            f"the bytes {item!r} are not an ONNX string",
            f"ONNX strings are UTF-8: {error.reason} at byte {error.start}",
            "decode them before feeding them",
        ) from None


def pack(array: Array, bits: int) -> bytes:
    """Return the elements of an ml_dtypes array as onnxruntime stores them."""
    raw = as_native(array).reshape(-1).view(np.uint8)
    if bits != 4:
        return raw.tobytes()
    low = raw & 0xF
    if low.size % 2:
        low = np.append(low, np.uint8(0))
    return bytes(low[0::2] | low[1::2] << 4)


def unpack(data: bytes, shape: tuple[int, ...], foreign: ExtendedDtype) -> Array:
    """Return the inverse of `pack`."""
    raw = np.frombuffer(bytearray(data), dtype=np.uint8)
    if foreign.bits == 4:
        halves = np.stack([raw & 0xF, raw >> 4], axis=1).reshape(-1)[: int(np.prod(shape))]
        if foreign.name == "int4":
            halves = ((halves ^ 8).astype(np.int8) - 8).astype(np.int8)
        return halves.astype(foreign.dtype).reshape(shape)
    return raw.view(foreign.dtype).reshape(shape)


def to_ort(ort: Any, value: Value) -> Any:
    """Convert a value for `session.run`: to an OrtValue if numpy lacks the dtype."""
    match value:
        case None:
            return None
        case list():
            return [to_ort(ort, item) for item in value]
        case _ if (foreign := BY_DTYPE_NAME.get(value.dtype.name)) is not None:
            made = ort.OrtValue.ortvalue_from_shape_and_type(list(value.shape), foreign.code)
            data = pack(value, foreign.bits)
            if len(data) != made.tensor_size_in_bytes():
                raise ModelError(
                    f"a {value.dtype} tensor of shape {value.shape} does not fit",
                    f"it has {len(data)} bytes, onnxruntime keeps {made.tensor_size_in_bytes()}",
                    "feed it as another dtype",
                )
            if data:
                ctypes.memmove(made.data_ptr(), data, len(data))
            return made
        case _:
            return as_native(value)


def from_ort(value: Any) -> Value:
    """Return the array in an OrtValue, of any dtype."""
    foreign = EXTENDED_DTYPES.get(element_name(value.data_type()))
    if foreign is None:
        array: Array = value.numpy()
        return array
    size = value.tensor_size_in_bytes()
    data = ctypes.string_at(value.data_ptr(), size) if size else b""
    return unpack(data, tuple(value.shape()), foreign)
