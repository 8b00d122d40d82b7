"""Conversion between ONNX's element types and ours."""

from __future__ import annotations

import onnx_ir as oir

from superopt.te import dtype as dt
from superopt.te.dtype import DType

_PAIRS: tuple[tuple[oir.DataType, DType], ...] = (
    (oir.DataType.FLOAT, dt.F32),
    (oir.DataType.UINT8, dt.U8),
    (oir.DataType.INT8, dt.I8),
    (oir.DataType.UINT16, dt.U16),
    (oir.DataType.INT16, dt.I16),
    (oir.DataType.INT32, dt.I32),
    (oir.DataType.INT64, dt.I64),
    (oir.DataType.STRING, dt.STRING),
    (oir.DataType.BOOL, dt.BOOL),
    (oir.DataType.FLOAT16, dt.F16),
    (oir.DataType.DOUBLE, dt.F64),
    (oir.DataType.UINT32, dt.U32),
    (oir.DataType.UINT64, dt.U64),
    (oir.DataType.COMPLEX64, dt.C64),
    (oir.DataType.COMPLEX128, dt.C128),
    (oir.DataType.BFLOAT16, dt.BF16),
    (oir.DataType.FLOAT8E4M3FN, dt.F8E4M3FN),
    (oir.DataType.FLOAT8E4M3FNUZ, dt.F8E4M3FNUZ),
    (oir.DataType.FLOAT8E5M2, dt.F8E5M2),
    (oir.DataType.FLOAT8E5M2FNUZ, dt.F8E5M2FNUZ),
    (oir.DataType.FLOAT8E8M0, dt.F8E8M0),
    (oir.DataType.FLOAT4E2M1, dt.F4E2M1),
    (oir.DataType.UINT4, dt.U4),
    (oir.DataType.INT4, dt.I4),
    (oir.DataType.UINT2, dt.U2),
    (oir.DataType.INT2, dt.I2),
)
_OURS: dict[int, DType] = {int(theirs): ours for theirs, ours in _PAIRS}
_THEIRS: dict[DType, oir.DataType] = {ours: theirs for theirs, ours in _PAIRS}


def dtype_of(code: int) -> DType | None:
    """Return our element type for an ONNX type code; None if there is none (or UNDEFINED)."""
    return _OURS.get(int(code))


def onnx_dtype(dtype: DType) -> oir.DataType:
    """Return ONNX's element type for ours. Raises KeyError for INDEX."""
    return _THEIRS[dtype]
