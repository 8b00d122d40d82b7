"""Dot products of the bytes of words: sums of four products of uint8 and int8, in int32.

    dot_bytes(x, y) = sum(u8(x >> 8 k) * i8(y >> 8 k) for k < 4)

x and y are uint32. It is a function of kernels only, which VPDPBUSD adds to a sum.
"""

from __future__ import annotations

from collections.abc import Sequence

from superopt.kernels.llvm.builder import Value
from superopt.kernels.llvm.writer import Writer
from superopt.kernels.processor import AVX512_VNNI, AVX_VNNI
from superopt.te.expr.dtype import I32

VECTOR_LANES = {AVX512_VNNI: (4, 8, 16), AVX_VNNI: (4, 8)}


def emit_dot_bytes(w: Writer, total: Value, operands: Sequence[Value]) -> Value:
    """Emit the sum of `total` and a dot product of bytes, in each lane."""
    lanes = total.lanes
    if lanes not in VECTOR_LANES.get(w.instructions, ()):
        raise NotImplementedError(f"{w.instructions} has no dot products of {lanes} lanes")
    some = [total, *(w.t.splat(x, lanes) for x in operands)]
    some = [Value(x.text, I32, lanes) for x in some]
    return w.t.call(f"llvm.x86.avx512.vpdpbusd.{32 * lanes}", some, I32)
