"""DLPack tensors of types that numpy lacks: bfloat16, as torch has it."""

from __future__ import annotations

import ctypes
from math import prod
from typing import Any

import numpy as np

CAPSULE_NAME = b"dltensor"
HOST_DEVICE_TYPES = (
    1,
    3,
    13,
)  # devices whose memory the CPU reads: its own, and what it shares with GPUs
BFLOAT_TYPE_CODE = 4  # kDLBfloat


class _DLTensor(ctypes.Structure):
    """The first fields of a DLManagedTensor, as in dlpack.h."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_get_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_capsule_pointer.restype = ctypes.c_void_p
_get_capsule_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)


def copy_bfloat16(tensor: Any, dtype: np.dtype) -> np.ndarray | None:
    """Return a copy of a bfloat16 tensor, in numpy's dtype for it; None for another type, or if the
    CPU cannot read the tensor."""
    capsule = tensor.__dlpack__()
    t = _DLTensor.from_address(_get_capsule_pointer(capsule, CAPSULE_NAME))
    if (t.code, t.bits, t.lanes) != (BFLOAT_TYPE_CODE, 16, 1) or t.device not in HOST_DEVICE_TYPES:
        return None
    shape = tuple(t.shape[: t.ndim])
    if not prod(shape):
        return np.empty(shape, dtype)
    steps = tuple(t.strides[: t.ndim]) if t.strides else _contiguous_strides(shape)
    if any(s < 0 for s in steps):
        return None
    count = 1 + sum((n - 1) * s for n, s in zip(shape, steps, strict=True))
    halves = (ctypes.c_uint16 * count).from_address((t.data or 0) + t.byte_offset)
    flat = np.frombuffer(halves, np.uint16)
    strided = np.lib.stride_tricks.as_strided(flat, shape, [2 * s for s in steps])
    return strided.copy().view(dtype)  # copied while the capsule lives


def _contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(prod(shape[k + 1 :]) for k in range(len(shape)))
