"""Magnitudes of values that depend on large constants: attention masks of -10000, -3.4e38 or -inf.

A sum regrouped around such a number is right over the reals, and loses all digits over floats: (x +
1e9) - 1e9 is not x. So reassociation must not make new sums with large operands.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

import numpy as np

from superopt.ir.graph import Constant, Node, Value, producer
from superopt.ir.op import Op
from superopt.rules.lang.value_facts import MAX_READ_BYTES, is_const, uniform_value

LARGE_MAGNITUDE = 1000.0  # its rounding error in f32, 6e-5, is what a check detects
TINY_MAGNITUDE = 1e-20  # no epsilon is as small: one divided by a mask
SUM_OPS = frozenset({"Add", "Sub", "Sum"})

# Operators whose results are about 1, or 0, for any operand.
_BOUNDED_OPS = frozenset(
    {
        "Softmax", "LogSoftmax", "Sigmoid", "HardSigmoid", "Tanh", "Softsign", "Erf", "Sin", "Cos",
        "Exp", "Log", "LayerNormalization", "RMSNormalization", "BatchNormalization",
        "InstanceNormalization", "GroupNormalization", "Attention",
    }
)  # fmt: skip
_FIRST_OPERAND_OPS = frozenset(
    {"Clip", "Pow", "Gather", "GatherND", "GatherElements", "Pad", "Tile", "Slice"}
)

_MAGNITUDE: WeakKeyDictionary[Value, float] = WeakKeyDictionary()


def magnitude(v: Value) -> float:
    """Estimate the largest |element| of `v` if all inputs and large weights are about 1.

    This is no bound: it follows constants of up to 1 MB through the operators.
    """
    known = _MAGNITUDE.get(v)
    if known is not None:
        return known
    if isinstance(v, Constant):
        found = _MAGNITUDE[v] = _constant_magnitude(v)
        return found
    n = producer(v)
    if n is None:
        return 1.0
    stack = [n]
    while stack:
        top = stack[-1]
        below = [m for i in top.inputs if i is not None and (m := producer(i)) is not None]
        new = [] if top in _MAGNITUDE else [m for m in below if m not in _MAGNITUDE]
        if new:
            stack += new
            continue
        stack.pop()
        if top not in _MAGNITUDE:
            _MAGNITUDE[top] = _node_magnitude(top)
    return _MAGNITUDE[n]


def declare_magnitude(v: Value, size: float) -> None:
    """Set the magnitude of an input."""
    _MAGNITUDE[v] = size


def _constant_magnitude(c: Constant) -> float:
    dtype = c.type.dtype
    if c.nbytes > MAX_READ_BYTES or dtype is None or not dtype.is_number:
        return 1.0
    array = c.load()
    return float(np.max(np.abs(array.astype(np.float64)), initial=0.0))


def _node_magnitude(n: Node) -> float:
    if n.op.opaque or n.op.name in _BOUNDED_OPS:
        return 1.0
    given = [_operand_magnitude(i) for i in n.inputs if i is not None]
    match n.op.name:
        case "Mul":
            return given[0] * given[1] if 0.0 not in given else 0.0
        case "Div":
            return _quotient_magnitude(given[0], n.inputs[1], given[1])
        case "Reciprocal":
            return _quotient_magnitude(1.0, n.inputs[0], given[0])
        case name if name in _FIRST_OPERAND_OPS:
            return given[0]
        case _:
            return max(given, default=1.0)


def _quotient_magnitude(x: float, y: Value | None, size: float) -> float:
    """Estimate the largest |element| of a quotient by `y`, whose own is `size`."""
    by = abs(uniform_value(y) or 0.0) or size
    return x / by if by else x


def _operand_magnitude(v: Value) -> float:
    n = producer(v)
    return magnitude(v) if n is None else _MAGNITUDE[n]


def lossy_operand(op: Op, operands: list[Value | None]) -> Value | None:
    """Return the operand that makes a new sum lose digits of another; None if there is none.

    Such an operand is large, or much larger than the computed data: a score divided by a mask's
    3.4e38 is 1e-39, and vanishes beside 8. A sum of constants is folded without loss of data: the
    mean of a batch normalization may be large, and an epsilon is meant to be small.
    """
    if op.name not in SUM_OPS or all(v is None or is_const(v) for v in operands):
        return None
    floats = [v for v in operands if v is not None and (t := v.type.dtype) and t.is_float]
    data = [
        size
        for v in floats
        if (size := magnitude(v)) > 0.0 and (size < TINY_MAGNITUDE or not is_const(v))
    ]
    most = LARGE_MAGNITUDE * min((1.0, *data))
    for v in floats:
        if not magnitude(v) <= most:  # NaN is large, too
            return v
    return None
