"""Conversions between bfloat16 and float32 by integer operations. A bfloat16 is the upper half of a
float32.

LLVM has instructions for them, but only processors with AVX512-BF16 do. For others it calls
compiler-rt, which this process may lack; and it moves a rounding to integers (floor) from float32
to bfloat16, which converts each element back.
"""

from __future__ import annotations

from superopt.kernels.llvm.builder import TextBuilder, Value, number
from superopt.te.expr.dtype import BF16, BOOL, F32, I16, I32

VECTOR_LANES = 16  # of the instruction


def bfloat16_to_float32(t: TextBuilder, x: Value) -> Value:
    """Convert bfloat16 to float32."""
    n = x.lanes
    short = t.make(f"bitcast {x} to {Value('', I16, n).type}", I16, n)
    whole = t.make(f"zext {short} to {Value('', I32, n).type}", I32, n)
    bits = t.make(f"shl {whole}, {number(16, I32, n).text}", I32, n)
    return t.make(f"bitcast {bits} to {Value('', F32, n).type}", F32, n)


def float32_to_bfloat16(t: TextBuilder, x: Value) -> Value:
    """Convert float32 to the nearest bfloat16, ties to even; NaN stays NaN."""
    n = x.lanes

    def op(text: str) -> Value:
        return t.make(text, I32, n)

    bits = op(f"bitcast {x} to {Value('', I32, n).type}")
    upper = op(f"lshr {bits}, {number(16, I32, n).text}")
    odd = op(f"and {upper}, {number(1, I32, n).text}")
    more = op(f"add {odd}, {number(0x7FFF, I32, n).text}")
    nearest = op(f"add {bits}, {more.text}")
    quiet = op(f"or {bits}, {number(1 << 22, I32, n).text}")
    nan = t.make(f"fcmp uno {x}, {x.text}", BOOL, n)
    kept = op(f"select {nan}, {quiet}, {nearest}")
    half = op(f"lshr {kept}, {number(16, I32, n).text}")
    short = t.make(f"trunc {half} to {Value('', I16, n).type}", I16, n)
    return t.make(f"bitcast {short} to {Value('', BF16, n).type}", BF16, n)


def round_vector(t: TextBuilder, x: Value) -> Value:
    """Convert a vector of float32 by VCVTNEPS2BF16 (AVX512-BF16): to the nearest, ties to even.
    Subnormal numbers become zero, as in products by AVX512-BF16 and AMX."""
    return t.call("llvm.x86.avx512bf16.cvtneps2bf16.512", [x], BF16)
