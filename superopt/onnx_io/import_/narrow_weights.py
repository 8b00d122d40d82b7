"""Constants of 4 bits, which no kernel reads as such.

DequantizeLinear(w)             w as int8 or uint8
MatMul(x, DequantizeLinear(w))  => MatMulNBits(x, packed w), for blocks along the summed axis, or
                                one scale for each column, or one scale
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as oir

from superopt.ir import graph
from superopt.ops import OPS
from superopt.ops.quantized.nbits import MIN_BLOCK_SIZE
from superopt.te.expr.dtype import (
    F8E4M3FN,
    F8E4M3FNUZ,
    F8E5M2,
    F8E5M2FNUZ,
    F16,
    F32,
    I4,
    I8,
    U4,
    U8,
    DType,
    to_numpy,
)
from superopt.te.expr.tensor import TensorType

NARROW_READERS = ("DequantizeLinear", "MatMul")
Operands = Sequence[graph.Value | None]
_INT4_TYPES = (I4, U4)
_WIDER_TYPES: dict[DType, DType] = {
    I4: I8, U4: U8, F8E4M3FN: F16, F8E4M3FNUZ: F16, F8E5M2: F16, F8E5M2FNUZ: F16,
}  # fmt: skip
_WIDENED = "widened"  # the first part of the key of such a constant
BITS, OFFSET = 4, 8  # what is added to int4 for uint4
MAX_BLOCK_SIZE = 128  # of weights with one scale for each column


def widen_constant(v: graph.Value | None) -> graph.Value | None:
    """Return a constant of a narrow type in a wider one; another value as it is."""
    if not isinstance(v, graph.Constant) or v.type.dtype not in _WIDER_TYPES:
        return v
    wide = _WIDER_TYPES[v.type.dtype]
    return graph.constant(
        type=TensorType(wide, v.type.shape),
        key=(_WIDENED, v),
        load=lambda: v.load().astype(to_numpy(wide)),
        nbytes=v.nbytes * wide.bits // v.type.dtype.bits,
    )


def expand_narrow_weights(n: oir.Node, operands: Operands) -> graph.Value | None:
    """Return the result of a node that reads narrow weights, by other nodes; None for another
    node."""
    if n.domain or len(operands) < 2:
        return None
    first, second = operands[:2]
    if n.op_type == "DequantizeLinear":
        return _dequantize(n, operands)
    if n.op_type != "MatMul" or first is None or not isinstance(second, graph.Node):
        return None
    found = _match_weights(second)
    return None if found is None or _is_dequantized(first) else _nbits_product(first, found)


def _dequantize(n: oir.Node, operands: Operands) -> graph.Value | None:
    x = operands[0]
    is_narrow = isinstance(x, graph.Constant) and x.type.dtype in _WIDER_TYPES
    if not is_narrow or "output_dtype" in n.attributes:
        return None
    attrs = {k: n.attributes[k].as_int() for k in ("axis", "block_size") if k in n.attributes}
    inputs = [widen_constant(v) for v in operands]
    return graph.node(OPS["DequantizeLinear"], inputs, **attrs)


@dataclass(frozen=True, slots=True)
class _Weights:
    """A constant (terms, columns) of 4 bits, its scales and zero points. block: terms of a block;
    0: the scale is that of the tensor or of columns."""

    q: graph.Constant
    scale: graph.Constant
    zero: graph.Constant | None
    block: int


def _is_dequantized(x: graph.Value) -> bool:
    """True for dequantized data, whose products are those of integers."""
    return isinstance(x, graph.Node) and x.op.name == "DequantizeLinear"


def _match_weights(w: graph.Node) -> _Weights | None:
    if w.op.name != "DequantizeLinear" or w.op.domain or w.type.dtype != F32:
        return None
    x, scale, zero = (_narrow_source(v) for v in (*w.inputs, None)[:3])
    shape = w.type.shape or ()
    if x is None or x.type.dtype not in _INT4_TYPES or len(shape) != 2 or scale is None:
        return None
    if len(w.inputs) > 2 and w.inputs[2] is not None and zero is None:
        return None
    block, axis = w.attr("block_size"), w.attr("axis")
    assert isinstance(block, int)
    whole = scale.type.shape in ((), (1,))
    if not whole and axis != (0 if block else 1):
        return None
    if block and (block < MIN_BLOCK_SIZE or block & (block - 1)):
        return None
    return _Weights(x, scale, zero, 0 if whole else block)


def _narrow_source(v: graph.Value | None) -> graph.Constant | None:
    """Return the constant that was widened, or the constant itself."""
    if not isinstance(v, graph.Constant):
        return None
    match v.key:
        case (key, graph.Constant() as source) if key == _WIDENED:
            return source
    return v


def _nbits_product(x: graph.Value, w: _Weights) -> graph.Value | None:
    terms, columns = w.q.type.shape or ()
    if not isinstance(terms, int) or not isinstance(columns, int):
        return None
    block = w.block or min(MAX_BLOCK_SIZE, max(MIN_BLOCK_SIZE, 1 << (terms.bit_length() - 1)))
    blocks = -(-terms // block)
    is_signed = w.q.type.dtype == I4

    def derived_constant(of: graph.Constant, dtype: DType, shape: tuple[int, ...],
                load: Callable[[], np.ndarray]) -> graph.Constant:  # fmt: skip
        key = ("packed", of, w.q, shape, dtype)
        nbytes = int(np.prod(shape)) * dtype.bits // 8
        return graph.constant(type=TensorType(dtype, shape), key=key, load=load, nbytes=nbytes)

    def by_block(a: np.ndarray) -> np.ndarray:
        """Scales or zero points as (columns, blocks)."""
        rows = a if w.block else np.broadcast_to(a.reshape(1, -1), (blocks, columns))
        return rows.T

    def packed_weights() -> np.ndarray:
        q = _to_uint4(w.q.load(), is_signed)
        padded = np.pad(q, [(0, blocks * block - terms), (0, 0)])
        return _pack(padded.T.reshape(columns, blocks, block))

    def packed_zeros() -> np.ndarray:
        zero = np.zeros(w.scale.load().shape, np.int8) if w.zero is None else w.zero.load()
        return _pack(by_block(_to_uint4(zero, is_signed))).reshape(-1)

    weights = derived_constant(w.q, U8, (columns, blocks, block * BITS // 8), packed_weights)
    scales = derived_constant(
        w.scale, F32, (columns * blocks,),
        lambda: np.ascontiguousarray(by_block(w.scale.load())).reshape(-1),
    )  # fmt: skip
    count = columns * -(-blocks * BITS // 8)
    zeros = derived_constant(w.zero or w.scale, U8, (count,), packed_zeros)
    attrs = {"K": terms, "N": columns, "bits": BITS, "block_size": block}
    return graph.node(OPS["MatMulNBits"], [x, weights, scales, zeros], **attrs)


def _to_uint4(q: np.ndarray, is_signed: bool) -> np.ndarray:
    return (q.astype(np.int8) + OFFSET * is_signed).astype(np.uint8)


def _pack(q: np.ndarray) -> np.ndarray:
    """Return pairs of 4 bits along the last axis in bytes, the lowest bits first."""
    padded = np.pad(q, [(0, 0)] * (q.ndim - 1) + [(0, q.shape[-1] % 2)])
    return np.asarray(padded[..., ::2] | (padded[..., 1::2] << BITS), np.uint8)
