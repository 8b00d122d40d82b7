"""Quantizations whose results no rounding changes.

Over integers n of at most 16 bits, q = QuantizeLinear and d = DequantizeLinear:

    q(d(n, s, z), s, z) = n     (n - z) * s / s is within 2^-22 of n - z relative to it in float32,
                                so that it rounds to n - z, if (n - z) * s and s are normal numbers
    q(relu(x), s, z) = q(x, s, z)    for s > 0, if z is the least number of the type: x / s < 0
                                rounds to at most 0, and saturates at z

`tests/rules/trial/test_exact_quantization.py` computes both in float32.
"""

from __future__ import annotations

import numpy as np

from superopt.ir.graph import Constant, Node, Value, producer
from superopt.te.expr.dtype import F32, I8, I16, U8, U16

MIN_SCALE, MAX_SCALE = 1e-30, 1e30  # of which products with 16-bit integers are normal numbers
INTEGERS = (I8, U8, I16, U16)


def equal_operand(n: Node) -> Value | None:
    """Return a value that the result of a node is equal to, bit by bit."""
    if n.op.name != "QuantizeLinear" or len(n.inputs) < 3:
        return None
    x, scale, zero = n.inputs[:3]
    inner = None if x is None else producer(x)
    if inner is None or inner.op.name != "DequantizeLinear" or inner.inputs[1:] != (scale, zero):
        return None
    q = inner.inputs[0]
    s = uniform_number(scale)
    is_exact = q is not None and q.type == n.types[0] and q.type.dtype in INTEGERS
    same = dict(n.attrs).get("axis") == dict(inner.attrs).get("axis")
    in_range = s is not None and MIN_SCALE < s < MAX_SCALE
    floats = x is not None and scale is not None and x.type.dtype is scale.type.dtype is F32
    return q if is_exact and same and in_range and floats else None


def equal_input(n: Node) -> Value | None:
    """Return a value that the first operand of a node may be replaced by, with the same result."""
    if n.op.name != "QuantizeLinear" or len(n.inputs) < 3:
        return None
    x, scale, zero = n.inputs[:3]
    inner = None if x is None else producer(x)
    if inner is None or inner.op.name != "Relu":
        return None
    s, z = uniform_number(scale), uniform_number(zero)
    dtype = n.types[0].dtype
    if s is None or z is None or s <= 0 or dtype not in INTEGERS:
        return None
    least = -(1 << (dtype.bits - 1)) if dtype.kind == "i" else 0
    return inner.inputs[0] if z == least else None


def uniform_number(v: Value | None) -> float | None:
    """Return the number of a constant with one number, else None."""
    if not isinstance(v, Constant):
        return None
    array = np.asarray(v.load())
    if array.size == 0 or (array != array.flat[0]).any():
        return None
    return float(array.flat[0])
