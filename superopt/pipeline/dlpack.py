"""Tensors by DLPack of types that numpy has no name for: bfloat16, as torch has it."""

from __future__ import annotations

import ctypes
from math import prod
from typing import Any

import numpy as np

NAME = b"dltensor"
HOST = (1, 3, 13)  # devices whose memory the processor reads: its own, and what it shares with GPUs
BFLOAT = 4  # a code of types


class _Tensor(ctypes.Structure):
    """What a capsule has, as dlpack.h says it; the rest of it is none of ours."""

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


_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype = ctypes.c_void_p
_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)


def bfloat16(given: Any, dtype: np.dtype) -> np.ndarray | None:
    """A copy of a tensor of bfloat16, of numpy's type for these; None where it is of others, or
    where the processor does not read it."""
    capsule = given.__dlpack__()
    t = _Tensor.from_address(_pointer(capsule, NAME))
    if (t.code, t.bits, t.lanes) != (BFLOAT, 16, 1) or t.device not in HOST:
        return None
    shape = tuple(t.shape[: t.ndim])
    if not prod(shape):
        return np.empty(shape, dtype)
    steps = tuple(t.strides[: t.ndim]) if t.strides else _dense(shape)
    if any(s < 0 for s in steps):
        return None
    count = 1 + sum((n - 1) * s for n, s in zip(shape, steps, strict=True))
    halves = (ctypes.c_uint16 * count).from_address((t.data or 0) + t.byte_offset)
    flat = np.frombuffer(halves, np.uint16)
    strided = np.lib.stride_tricks.as_strided(flat, shape, [2 * s for s in steps])
    return strided.copy().view(dtype)  # while the capsule is there


def _dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(prod(shape[k + 1 :]) for k in range(len(shape)))
