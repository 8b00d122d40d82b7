"""Results of functions and folds as columns, without their identity hashes; see `rounding.py`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from superopt.te.eval.rounding_columns import (
    ADDEND_VALUE,
    FACTOR_VALUE,
    IS_CONSTANT,
    LOWER_BOUND,
    RATIONAL_VALUE,
    REAL_VALUE,
    ROUNDING_COUNT,
    UPPER_BOUND,
    float_row,
    generic_value,
    make_elements,
    set_bounds,
    set_float_row,
)
from superopt.te.expr.dtype import DType
from superopt.te.expr.functions import scalar_function

_CORRECTLY_ROUNDED = frozenset(
    ("sqrt", "floor", "round", "mod", "fmod")
)  # rounded once, or not at all
# Functions that overflow or are NaN for some arguments: a law of these also concerns exceptions.
_PARTIAL_FUNCTIONS = frozenset(
    ("exp", "log", "sqrt", "pow", "sinh", "cosh", "asin", "acos", "acosh", "atanh", "tan", "asinh")
)
_NEVER_ROUNDED = frozenset(("floor", "round"))
_RESULT_RANGES = {
    "exp": (0, np.inf), "sqrt": (0, np.inf), "cosh": (1, np.inf), "acosh": (0, np.inf),
    "sigmoid": (0, 1), "tanh": (-1, 1), "erf": (-1, 1), "sin": (-1, 1), "cos": (-1, 1),
    "acos": (0, 4),
}  # fmt: skip
_SIGN_PRESERVING = frozenset(
    ("tanh", "erf", "sinh", "asinh", "atan", "asin")
)  # the sign of the argument


def _result_bounds(fn: str, args: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the bounds of a function's results, including rounding."""
    low, high = float_row(args[0], LOWER_BOUND), float_row(args[0], UPPER_BOUND)
    if fn in _NEVER_ROUNDED:
        own = np.floor if fn == "floor" else np.rint
        return own(low), own(high)
    first, last = _RESULT_RANGES.get(fn, (-np.inf, np.inf))
    signed = fn in _SIGN_PRESERVING
    least = np.where((low >= 0) & (signed or fn == "pow"), np.maximum(0, first), first)
    return least, np.where((high <= 0) & signed, 0, last)


def function_columns(fn: str, args: Sequence[np.ndarray], dtype: DType) -> np.ndarray:
    """Return the result of a function that rounds once or more. Its identity hash and its order
    keys are set later."""
    reals = [float_row(a, REAL_VALUE) for a in args]
    own = scalar_function(fn).float_impl if fn != "bitcast" else None
    out = make_elements(own(*reals) if own is not None else reals[0], dtype, *args)
    if fn not in _NEVER_ROUNDED:
        out[ROUNDING_COUNT] = 1 if fn in _CORRECTLY_ROUNDED and not out[ROUNDING_COUNT].any() else 2
    set_bounds(out, *_result_bounds(fn, args))
    for row in (ADDEND_VALUE, RATIONAL_VALUE):
        given = [float_row(a, row) for a in args]
        known = row == RATIONAL_VALUE and fn not in _PARTIAL_FUNCTIONS and own is not None
        value = own(*given) if known and own is not None else generic_value(fn, given)
        set_float_row(out, row, np.where(out[IS_CONSTANT] == 1, float_row(out, REAL_VALUE), value))
    return out


def folded_columns(fn: str, flat: np.ndarray, dtype: DType) -> np.ndarray:
    """Return the sum or product over the last axis, which is not empty. Its identity hash and its
    order keys are set later."""
    fold = np.add.reduce if fn == "sum" else np.multiply.reduce
    out = make_elements(
        fold(float_row(flat, REAL_VALUE), axis=-1), dtype, *np.moveaxis(flat, -1, 0)
    )
    out[ROUNDING_COUNT] = 2
    if fn == "sum":
        set_bounds(
            out,
            float_row(flat, LOWER_BOUND).sum(axis=-1),
            float_row(flat, UPPER_BOUND).sum(axis=-1),
        )
    elif (float_row(flat, LOWER_BOUND) >= 0).all():
        set_bounds(out, 0, np.inf)
    for row in (RATIONAL_VALUE, ADDEND_VALUE if fn == "sum" else FACTOR_VALUE):
        set_float_row(out, row, fold(float_row(flat, row), axis=-1))
    return out
