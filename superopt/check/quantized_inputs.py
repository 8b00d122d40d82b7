"""Inputs for quantized models: extremes in runs, whole ranges, ties, and values that saturate.

`vpmaddubsw` adds two neighbouring products of uint8 by int8 in 16 bits. Weights of 65 and 64
saturate only if both values are near 255, which independent random values seldom are. So extremes
are drawn in blocks, along each axis. Floats that are quantized are drawn as steps of that
quantization, beyond both ends of its range, and halves of steps, which are rounded to even.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from superopt.check.quantizers import is_quantizer
from superopt.ir import graph as ir_graph
from superopt.te.expr.dtype import DType, to_numpy

EXTREME_BLOCK = 4  # elements of a block of extremes, on each axis
EXTREME_FRACTION = 0.4  # of the blocks
TIE_FRACTION = 0.25  # of the elements are in the middle of two steps
BEYOND_RANGE = 1 / 16  # of a quantization's range, drawn beyond each end
DYNAMIC_SCALE = 2.0**-6  # of floats for DynamicQuantizeLinear: so ties are exact
MAX_RANGE_BITS = 16  # of a quantization whose steps are drawn
# Operators on integers whose result is defined for all values, and that no size depends on.
_ARITHMETIC = frozenset(
    ("Add", "Sub", "Mul", "Neg", "Abs", "Max", "Min", "Where", "Equal", "Less", "LessOrEqual",
     "Greater", "GreaterOrEqual", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot", "Sign",
     "DequantizeLinear", "MatMul", "MatMulInteger", "ReduceSum", "ReduceMax", "ReduceMin")
)  # fmt: skip
_INTEGER_PRODUCTS = frozenset(
    ("MatMulInteger", "ConvInteger", "MatMulIntegerToFloat", "DynamicQuantizeMatMul",
     "DynamicQuantizeLSTM", "QAttention", "MatMulNBits")
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class InputQuantization:
    """The first quantization of an input: by constant scales and zero points, as arrays that
    broadcast, to integers from `low` to `high`. dynamic: its scale is that of the input's range."""

    scale: np.ndarray
    zero: np.ndarray
    low: int
    high: int
    dynamic: bool = False


def is_quantized(graph: ir_graph.Graph) -> bool:
    """True if a graph quantizes, dequantizes or multiplies quantized integers."""
    return any(
        is_quantizer(n) or n.op.name == "DequantizeLinear" or n.op.title in _INTEGER_PRODUCTS
        for n in ir_graph.nodes(graph)
    )


def with_extremes(array: np.ndarray, low: int, high: int, rng: np.random.Generator) -> np.ndarray:
    """Return integers with blocks of the least and the greatest value, in place of others."""
    blocks = tuple(-(-n // EXTREME_BLOCK) for n in array.shape)
    chosen = rng.random(blocks) < EXTREME_FRACTION
    ends = np.where(rng.random(blocks) < 0.5, low, high).astype(array.dtype)
    for axis, n in enumerate(array.shape):
        chosen, ends = (
            np.repeat(a, EXTREME_BLOCK, axis).take(range(n), axis) for a in (chosen, ends)
        )
    return np.where(chosen, ends, array)


def input_quantization(graph: ir_graph.Graph, i: ir_graph.Input) -> InputQuantization | None:
    """Return the quantization that reads a float input, perhaps moved; None if there is none with
    constant scales."""
    users = ir_graph.users(graph)
    stack: list[ir_graph.Value] = [i]
    while stack:
        v = stack.pop()
        for n in users.get(v, []):
            if n.op.name == "DynamicQuantizeLinear":
                return InputQuantization(
                    np.array(DYNAMIC_SCALE), np.array(128.0), 0, 255, dynamic=True
                )
            if n.op.name == "QuantizeLinear" and n.inputs[0] is v:
                found = _constant_quantization(n, is_moved=v is not i)
                if found is not None:
                    return found
            elif n.op.name in ("Identity", "Reshape", "Flatten", "Transpose"):
                stack.extend(ir_graph.results(n))
    return None


def _constant_quantization(n: ir_graph.Node, *, is_moved: bool) -> InputQuantization | None:
    x, scale, zero = (*n.inputs, None)[:3]
    dtype = n.type.dtype
    if dtype is None or not dtype.is_int or dtype.bits > MAX_RANGE_BITS or n.attr("block_size"):
        return None
    if not isinstance(scale, ir_graph.Constant) or not isinstance(zero, ir_graph.Constant | None):
        return None
    arrays = [scale.load(), np.zeros(()) if zero is None else zero.load()]
    rank = len((x.type.shape if x is not None else None) or ())
    if any(a.size > 1 for a in arrays):
        axis = n.attr("axis")
        if is_moved or not isinstance(axis, int):
            return None
        arrays = [a.reshape([-1 if k == axis else 1 for k in range(rank)]) for a in arrays]
    else:
        arrays = [a.reshape(()) for a in arrays]
    low, high = integer_range(dtype)
    return InputQuantization(arrays[0].astype(np.float64), arrays[1].astype(np.float64), low, high)


def integer_range(dtype: DType) -> tuple[int, int]:
    """Return the least and the greatest integer of a type.

    >>> from superopt.te.expr.dtype import I8
    >>> integer_range(I8)
    (-128, 127)
    """
    if dtype.kind == "i":
        return -(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1
    return 0, (1 << dtype.bits) - 1


def quantized_floats(
    shape: tuple[int, ...], q: InputQuantization, dtype: DType, rng: np.random.Generator
) -> np.ndarray:
    """Return floats that a quantization maps to its whole range, with ties, blocks of extremes and
    values that saturate."""
    more = 0 if q.dynamic else int((q.high - q.low) * BEYOND_RANGE) + 1
    steps = rng.integers(q.low - more, q.high + more + 1, shape)
    steps = with_extremes(steps, q.low, q.high, rng)
    halves = np.where(rng.random(shape) < TIE_FRACTION, 0.5, 0.0)
    if q.dynamic:
        halves = np.where(steps < q.high, halves, 0.0)  # the range stays 255 steps
    return np.asarray((steps + halves - q.zero) * q.scale).astype(to_numpy(dtype))


def takes_all_integers(graph: ir_graph.Graph, i: ir_graph.Input) -> bool:
    """True if an input of integers is read by arithmetic alone, so that all its values are valid:
    no index, size or mask depends on it."""
    users = ir_graph.users(graph)
    stack, seen = [i], {i}  # type: tuple[list[ir_graph.Value], set[ir_graph.Value]]
    while stack:
        v = stack.pop()
        for n in users.get(v, []):
            if not _is_arithmetic(n, v):
                return False
            more = [r for r in _integer_results(n) if r not in seen]
            seen.update(more)
            stack += more
    return True


def _is_arithmetic(n: ir_graph.Node, v: ir_graph.Value) -> bool:
    if n.op.name == "Cast":
        return n.type.dtype is not None and n.type.dtype.is_int
    return n.op.name in _ARITHMETIC or ("data" in n.op.laws and n.inputs[0] is v)


def _integer_results(n: ir_graph.Node) -> Iterable[ir_graph.Value]:
    for r in ir_graph.results(n):
        if r.type.dtype is None or not r.type.dtype.is_float:
            yield r
