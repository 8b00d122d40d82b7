"""Conversion between ONNX's element types and ours."""

from __future__ import annotations

import onnx_ir as oir

from superopt.te.expr import dtype as te_dtype
from superopt.te.expr.dtype import DType

_DTYPE_PAIRS: tuple[tuple[oir.DataType, DType], ...] = (
    (oir.DataType.FLOAT, te_dtype.F32),
    (oir.DataType.UINT8, te_dtype.U8),
    (oir.DataType.INT8, te_dtype.I8),
    (oir.DataType.UINT16, te_dtype.U16),
    (oir.DataType.INT16, te_dtype.I16),
    (oir.DataType.INT32, te_dtype.I32),
    (oir.DataType.INT64, te_dtype.I64),
    (oir.DataType.STRING, te_dtype.STRING),
    (oir.DataType.BOOL, te_dtype.BOOL),
    (oir.DataType.FLOAT16, te_dtype.F16),
    (oir.DataType.DOUBLE, te_dtype.F64),
    (oir.DataType.UINT32, te_dtype.U32),
    (oir.DataType.UINT64, te_dtype.U64),
    (oir.DataType.COMPLEX64, te_dtype.C64),
    (oir.DataType.COMPLEX128, te_dtype.C128),
    (oir.DataType.BFLOAT16, te_dtype.BF16),
    (oir.DataType.FLOAT8E4M3FN, te_dtype.F8E4M3FN),
    (oir.DataType.FLOAT8E4M3FNUZ, te_dtype.F8E4M3FNUZ),
    (oir.DataType.FLOAT8E5M2, te_dtype.F8E5M2),
    (oir.DataType.FLOAT8E5M2FNUZ, te_dtype.F8E5M2FNUZ),
    (oir.DataType.FLOAT8E8M0, te_dtype.F8E8M0),
    (oir.DataType.FLOAT4E2M1, te_dtype.F4E2M1),
    (oir.DataType.UINT4, te_dtype.U4),
    (oir.DataType.INT4, te_dtype.I4),
    (oir.DataType.UINT2, te_dtype.U2),
    (oir.DataType.INT2, te_dtype.I2),
)
_FROM_ONNX: dict[int, DType] = {int(theirs): ours for theirs, ours in _DTYPE_PAIRS}
_TO_ONNX: dict[DType, oir.DataType] = {ours: theirs for theirs, ours in _DTYPE_PAIRS}


def dtype_of(code: int) -> DType | None:
    """Return our element type for an ONNX type code; None if there is none (or UNDEFINED)."""
    return _FROM_ONNX.get(int(code))


def onnx_dtype(dtype: DType) -> oir.DataType:
    """Return ONNX's element type for ours. Raises KeyError for INDEX."""
    return _TO_ONNX[dtype]
