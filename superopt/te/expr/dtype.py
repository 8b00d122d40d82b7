"""Element types: those of ONNX, and `INDEX`, the sort of index arithmetic (unbounded integers)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np


@dataclass(frozen=True, slots=True, eq=False)
class DType:
    """An element type. `kind` is one of b(ool) u i f c(omplex) s(tring) and x (index). The
    instances below are the only ones, so that types compare by identity, which expressions do
    often."""

    name: str
    kind: str
    bits: int

    def __reduce__(self) -> tuple[Callable[[str], DType], tuple[str]]:
        return dtype_named, (self.name,)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return self.name

    @property
    def is_float(self) -> bool:
        return self.kind == "f"

    @property
    def is_int(self) -> bool:
        return self.kind in "ui"

    @property
    def is_number(self) -> bool:
        return self.kind in "uif"


INDEX = DType("index", "x", 64)
BOOL = DType("bool", "b", 8)
U8, U16, U32, U64 = (DType(f"u{n}", "u", n) for n in (8, 16, 32, 64))
I8, I16, I32, I64 = (DType(f"i{n}", "i", n) for n in (8, 16, 32, 64))
F16, F32, F64 = (DType(f"f{n}", "f", n) for n in (16, 32, 64))
BF16 = DType("bf16", "f", 16)
F8E4M3FN = DType("f8e4m3fn", "f", 8)
F8E4M3FNUZ = DType("f8e4m3fnuz", "f", 8)
F8E5M2 = DType("f8e5m2", "f", 8)
F8E5M2FNUZ = DType("f8e5m2fnuz", "f", 8)
F8E8M0 = DType("f8e8m0", "f", 8)
F4E2M1 = DType("f4e2m1", "f", 4)
U4, I4 = DType("u4", "u", 4), DType("i4", "i", 4)
U2, I2 = DType("u2", "u", 2), DType("i2", "i", 2)
C64, C128 = DType("c64", "c", 64), DType("c128", "c", 128)
STRING = DType("string", "s", 0)


def is_widening(a: DType, b: DType) -> bool:
    """True if every value of `a` is a value of `b`. For floats only F32 and F64 are considered as
    `b`."""
    if a.kind == b.kind and a.kind in "ui":
        return a.bits <= b.bits
    if a.kind == "u" and b.kind == "i":
        return a.bits < b.bits
    return a == b or (a.is_float and b in (F32, F64) and a.bits < b.bits)


_NUMPY: dict[DType, np.dtype] = {
    BOOL: np.dtype(np.bool_),
    U8: np.dtype(np.uint8),
    U16: np.dtype(np.uint16),
    U32: np.dtype(np.uint32),
    U64: np.dtype(np.uint64),
    I8: np.dtype(np.int8),
    I16: np.dtype(np.int16),
    I32: np.dtype(np.int32),
    I64: np.dtype(np.int64),
    F16: np.dtype(np.float16),
    F32: np.dtype(np.float32),
    F64: np.dtype(np.float64),
    BF16: np.dtype(ml_dtypes.bfloat16),
    F8E4M3FN: np.dtype(ml_dtypes.float8_e4m3fn),
    F8E4M3FNUZ: np.dtype(ml_dtypes.float8_e4m3fnuz),
    F8E5M2: np.dtype(ml_dtypes.float8_e5m2),
    F8E5M2FNUZ: np.dtype(ml_dtypes.float8_e5m2fnuz),
    F8E8M0: np.dtype(ml_dtypes.float8_e8m0fnu),
    F4E2M1: np.dtype(ml_dtypes.float4_e2m1fn),
    U4: np.dtype(ml_dtypes.uint4),
    I4: np.dtype(ml_dtypes.int4),
    U2: np.dtype(ml_dtypes.uint2),
    I2: np.dtype(ml_dtypes.int2),
    C64: np.dtype(np.complex64),
    C128: np.dtype(np.complex128),
    STRING: np.dtype(object),
}
DTYPES: dict[str, DType] = {d.name: d for d in (INDEX, *_NUMPY)}


def dtype_named(name: str) -> DType:
    """Return the element type with this name; KeyError if there is none."""
    return DTYPES[name]


def to_numpy(dtype: DType) -> np.dtype:
    """Return the numpy dtype that stores `dtype` (4-bit types take a byte for each element)."""
    return _NUMPY[dtype] if dtype != INDEX else np.dtype(np.int64)


_FROM_NUMPY = {v: k for k, v in _NUMPY.items()}


def from_numpy(dtype: np.dtype) -> DType:
    """Return the element type that `dtype` stores; STRING for strings of any kind."""
    if dtype.kind in "UST":
        return STRING
    try:
        return _FROM_NUMPY[np.dtype(dtype)]
    except KeyError:
        raise TypeError(f"numpy dtype {dtype} is not an ONNX element type") from None
