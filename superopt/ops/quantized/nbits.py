"""Products with weights of 2, 4 or 8 bits, quantized in blocks along the reduced axis.

ONNX Runtime's contrib operator is specified in
https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md.
"""

from __future__ import annotations

from superopt.ir.op import InferError, op
from superopt.ops.shared.precision import narrow_tensor, widen_tensor
from superopt.ops.shared.scalars import expect_kinds
from superopt.te.analysis.size_oracle import are_sizes_equal
from superopt.te.expr.dtype import F32, U8
from superopt.te.expr.node import Expr
from superopt.te.expr.tensor import Tensor, apply, cast, compute, const, reduce_sum

CONTRIB_DOMAIN = "com.microsoft"
WEIGHT_BITS = (2, 4, 8)
MIN_BLOCK_SIZE = 16
INT8_LEVEL = 4  # the accuracy_level that permits activations of 8 bits


@op(
    "MatMulNBits",
    example=(
        "f32[2,40] u8[3,3,8] f32[9] K=40 N=3 block_size=16",
        "f32[2,2,32] u8[3,2,8] f32[3,2] u8[3,1] K=32 N=3 block_size=16",
        "f32[2,32] u8[3,2,16] f32[6] f32[6] K=32 N=3 bits=8 block_size=16",
    ),
    domain=CONTRIB_DOMAIN,
)
def matmul_nbits(
    a: Tensor,
    b: Tensor,
    scales: Tensor,
    zero_points: Tensor | None = None,
    g_idx: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    K: int,
    N: int,
    bits: int = 4,
    block_size: int,
    accuracy_level: int = 0,
) -> Tensor:
    """a w + bias for w[k, n] = (q[n, k] - zero_points[n, k // block_size]) * scales[...], in
    float32. b: q in bytes, [n, block, byte], the lowest bits first.

    accuracy_level: the least accuracy that kernels may compute in: 4 permits activations rounded
    to 8 bits in each block. The expression is of float32, which fulfils all.
    """
    check_operands(a, b, scales, zero_points, g_idx, bias, K, N, bits, block_size)
    per_byte, blocks, x = 8 // bits, -(-K // block_size), widen_tensor(a)

    def weight(n: Expr, k: Expr) -> Expr:
        block, inside = k // block_size, k % block_size
        byte = b[n, block, inside // per_byte]
        q = _bit_field(byte, cast(inside % per_byte, U8), bits)
        zero = _zero_point(zero_points, n, block, blocks, bits)
        return (cast(q, F32) - zero) * cast(_block_value(scales, n, block, blocks), F32)

    def element(*i: Expr) -> Expr:
        out = reduce_sum(K, lambda k: x[(*i[:-1], k)] * weight(i[-1], k))
        return out if bias is None else out + cast(bias[i[-1]], F32)

    return narrow_tensor(compute((*a.shape[:-1], N), element), a.dtype)


def check_operands(
    a: Tensor,
    b: Tensor,
    scales: Tensor,
    zero_points: Tensor | None,
    g_idx: Tensor | None,
    bias: Tensor | None,
    k: int,
    n: int,
    bits: int,
    block_size: int,
) -> None:
    """Raise InferError unless ONNX Runtime accepts the operands and an expression exists."""
    name = "MatMulNBits"
    expect_kinds(name, "f", a)
    expect_kinds(name, "f", scales)
    if bits not in WEIGHT_BITS or block_size < MIN_BLOCK_SIZE or block_size & (block_size - 1):
        raise InferError(f"{name} of {bits} bits in blocks of {block_size}")
    if g_idx is not None:
        raise InferError(f"{name} with g_idx {g_idx.type}")
    blocks = -(-k // block_size)
    if not a.rank or not are_sizes_equal(a.shape[-1], k):
        raise InferError(f"{name} of {a.type}: its last axis has not K = {k} elements")
    if b.dtype != U8 or b.shape != (n, blocks, block_size * bits // 8):
        raise InferError(f"{name}: {b.type} does not hold {n} x {k} weights of {bits} bits")
    if scales.shape not in ((n * blocks,), (n, blocks)):
        raise InferError(f"{name}: {scales.type} does not hold {n} x {blocks} scales")
    if zero_points is not None:
        count = -(-blocks * bits // 8) if zero_points.dtype == U8 else blocks
        if zero_points.shape not in ((n * count,), (n, count)):
            raise InferError(f"{name}: {zero_points.type} does not hold {n} x {blocks} zero points")
        if zero_points.dtype != U8 and not zero_points.dtype.is_float:
            raise InferError(f"{name}: zero points of {zero_points.dtype}")
    if bias is not None and bias.shape != (n,):
        raise InferError(f"{name}: bias {bias.type} for {n} columns")


def _bit_field(byte: Expr, number: Expr, bits: int) -> Expr:
    """Return a field of `bits` bits, by its number from the lowest."""
    return apply("bitand", apply("shr", byte, number * bits), (1 << bits) - 1)


def _block_value(x: Tensor, n: Expr, block: Expr, blocks: int) -> Expr:
    return x[n * blocks + block] if x.rank == 1 else x[n, block]


def _zero_point(x: Tensor | None, n: Expr, block: Expr, blocks: int, bits: int) -> Expr:
    if x is None:
        return const(1 << (bits - 1), F32)
    if x.dtype.is_float:
        return cast(_block_value(x, n, block, blocks), F32)
    per_byte = 8 // bits
    byte = _block_value(x, n, block // per_byte, -(-blocks // per_byte))
    return cast(_bit_field(byte, cast(block % per_byte, U8), bits), F32)
