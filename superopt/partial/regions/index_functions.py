"""Evaluate index functions on numpy arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from superopt.te.expr.node import Apply, Axis, Const, Expr


def apply_index_function(fn: str, operands: Sequence[np.ndarray]) -> np.ndarray:
    """Apply an index function."""
    if fn == "select":
        return np.where(operands[0], operands[1], operands[2])
    out = operands[0]
    for x in operands[1:]:
        out = _NUMPY_FUNCTIONS[fn](out, x)
    return np.negative(out) if fn == "neg" else np.asarray(out)


def evaluate_index(e: Expr, at: Mapping[Axis, np.ndarray]) -> np.ndarray:
    """Evaluate an index expression of axes."""
    match e:
        case Const(value):
            return np.asarray(value)
        case Apply(fn, args):
            return apply_index_function(fn, [evaluate_index(a, at) for a in args])
    assert isinstance(e, Axis), e
    return at[e]


_NUMPY_FUNCTIONS = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "floordiv": np.floor_divide,
    "mod": np.mod, "min": np.minimum, "max": np.maximum, "lt": np.less, "le": np.less_equal,
    "eq": np.equal, "ne": np.not_equal,
}  # fmt: skip
