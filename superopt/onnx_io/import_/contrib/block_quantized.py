"""Values of com.microsoft that are quantized in blocks, or of 16 and 4 bits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as oir

from superopt.ir import graph
from superopt.ir.op import InferError
from superopt.onnx_io.import_.contrib.build import (
    KnownSize,
    Operands,
    as_i64,
    optional_operand,
    require_operands,
    shape_of,
    static_size,
    unsqueeze,
)
from superopt.onnx_io.import_.contrib.quantization import known_attributes
from superopt.onnx_io.import_.ml.build import apply, constant, integer_attribute, scalar_like
from superopt.onnx_io.import_.narrow_weights import widen_constant
from superopt.ops.shared.broadcasting import normalize_axis
from superopt.te.expr.dtype import I4, I64, U4, U8
from superopt.te.expr.tensor import product

DEFAULT_BLOCK_SIZE = 128
PACKED_BITS = (2, 4, 8)


def quantize_or_dequantize(
    n: oir.Node, operands: Operands, known: KnownSize
) -> Sequence[graph.Value]:
    """ONNX's QuantizeLinear or DequantizeLinear. Operands: x, scale, zero_point."""
    x, scale = require_operands(n, operands, 0, 1)
    zero = optional_operand(operands, 2)
    per_axis = scale.type.shape not in ((), (1,))
    if per_axis and n.attributes.get("axis") is None:
        raise InferError(f"{n.op_type} with a scale {scale.type} and no axis")
    axis = integer_attribute(n, "axis", 1) if per_axis else 1
    if not per_axis and zero is not None and zero.type.shape not in ((), (1,)):
        raise InferError(f"{n.op_type} with zero points {zero.type} and one scale")
    if n.op_type == "DequantizeLinear":
        return (apply(n.op_type, widen_constant(x), scale, widen_constant(zero), axis=axis),)
    return (apply(n.op_type, x, scale, zero, axis=axis),)


def gather_block_quantized(
    n: oir.Node, operands: Operands, known: KnownSize
) -> Sequence[graph.Value]:
    """The slices of data at the indices, dequantized in blocks; 0 where an index is out of range.

    Operands: data (perhaps with several elements in a byte of the last axis, the lowest bits
    first), indices, scales, zero_points.
    """
    data, indices, scales = require_operands(n, operands, 0, 1, 2)
    zeros = optional_operand(operands, 3)
    shape = data.type.shape
    if shape is None or indices.type.shape is None:
        raise InferError(f"GatherBlockQuantized of {data.type} at {indices.type}")
    rank, block = len(shape), integer_attribute(n, "block_size", DEFAULT_BLOCK_SIZE)
    axis = normalize_axis(integer_attribute(n, "gather_axis", 0), rank)
    blocks = normalize_axis(integer_attribute(n, "quantize_axis", 1), rank)
    bits = integer_attribute(n, "bits", 4)
    if data.type.dtype not in (U8, I4, U4) or axis == blocks or block < 1:
        raise InferError(f"GatherBlockQuantized of {data.type} in blocks of {block}")
    packed = data.type.dtype == U8 and bits < 8
    if bits not in PACKED_BITS or (data.type.dtype != U8 and bits != 4):
        raise InferError(f"GatherBlockQuantized of {data.type} with {bits} bits")
    if packed and blocks != rank - 1:
        raise InferError("GatherBlockQuantized of bytes, not along their last axis")
    added = len(indices.type.shape) - 1  # axes
    at, fits = _indices_in_range(as_i64(indices), static_size(shape[axis], "the gathered axis"))
    q = apply("Gather", widen_constant(data), at, axis=axis)
    scale, zeros = apply("Gather", scales, at, axis=axis), widen_constant(zeros)
    zero = None if zeros is None else apply("Gather", zeros, at, axis=axis)
    groups = shape_of(scale, rank + added)
    if packed:
        q, zero = unpack_bits(q, bits), None if zero is None else unpack_bits(zero, bits)
    if packed and zero is not None:
        zero = apply("Slice", zero, starts=(0,), ends=(groups[-1],), axes=(-1,), steps=(1,))
    if zero is None and data.type.dtype == U8:
        zero = apply("Expand", constant(1 << (bits - 1), U8), shape=groups)
    along = blocks if blocks < axis else blocks + added
    y = apply("DequantizeLinear", q, scale, zero, axis=along, block_size=block)
    visible = unsqueeze(fits, *range(axis), *range(axis + added + 1, rank + added))
    return (apply("Where", visible, y, scalar_like(0, y)),)


def _indices_in_range(indices: graph.Value, size: int) -> tuple[graph.Value, graph.Value]:
    """Return indices from 0, 0 for those out of range, and which are in range. Negative indices
    count from the end."""
    zero, count = constant(0, I64), constant(size, I64)
    negative = apply("Less", indices, zero)
    at = apply("Where", negative, apply("Add", indices, count), indices)
    fits = apply("And", apply("LessOrEqual", zero, at), apply("Less", at, count))
    return apply("Where", fits, at, zero), fits


def matmul_nbits_in_groups(
    n: oir.Node, operands: Operands, known: KnownSize
) -> Sequence[graph.Value]:
    """MatMulNBits whose rows of weights have groups by an operand, g_idx, as the product of the
    rows in the order of their groups.

    Raises InferError unless g_idx is a constant and has one block of rows for each group.
    """
    x, given, scales, groups = require_operands(n, operands, 0, 1, 2, 4)
    weights = given
    attrs = known_attributes(n, "MatMulNBits")
    terms, block, bits = (attrs[key] for key in ("K", "block_size", "bits"))
    if not isinstance(groups, graph.Constant) or not isinstance(given, graph.Constant):
        raise InferError("MatMulNBits with g_idx, or weights with it, that are no constants")
    if not isinstance(terms, int) or not isinstance(block, int) or not isinstance(bits, int):
        raise InferError("MatMulNBits without K or block_size")
    own = groups.load().reshape(-1)[:terms]
    order = np.argsort(own, kind="stable")
    if not np.array_equal(own[order], np.arange(terms) // block):
        raise InferError(f"MatMulNBits with g_idx whose groups have not {block} rows each")
    if not np.array_equal(order, np.arange(terms)):
        x = apply("Gather", x, constant(order, I64), axis=-1)
        weights = graph.constant(
            type=given.type,
            key=("rows in order", given, groups),
            load=lambda: _reorder_rows(given.load(), order, bits),
            nbytes=given.nbytes,
        )
    rest = [optional_operand(operands, 3), None, optional_operand(operands, 5)]
    return (apply("MatMulNBits", x, weights, scales, *rest, **attrs),)


def _reorder_rows(packed: np.ndarray, order: np.ndarray, bits: int) -> np.ndarray:
    """Return weights of MatMulNBits, (columns, blocks, bytes), with their rows in another order."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    fields = (packed[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    rows = fields.reshape(len(packed), -1)
    rows[:, : len(order)] = rows[:, order]
    return np.asarray(np.bitwise_or.reduce(rows.reshape(fields.shape) << shifts, axis=-1))


def unpack_bits(x: graph.Value, bits: int) -> graph.Value:
    """Return the fields of the bytes along the last axis, the lowest bits first."""
    shape, per_byte = shape_of(x, *range(1, 16)), 8 // bits
    fields = [
        apply(
            "BitwiseAnd",
            apply("BitShift", x, constant(k * bits, U8), direction="RIGHT") if k else x,
            constant((1 << bits) - 1, U8),
        )
        for k in range(per_byte)
    ]
    whole = apply("Concat", *(unsqueeze(f, len(shape)) for f in fields), axis=len(shape))
    return apply("Reshape", whole, shape=(*shape[:-1], product((shape[-1], per_byte))))
