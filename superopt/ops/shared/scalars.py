"""Shared scalars: ONNX float attributes and accumulation precision."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import add

import numpy as np

from superopt.ir.op import Attr, Canonical, InferError, Types
from superopt.te.expr.dtype import BF16, F16, F32, DType
from superopt.te.expr.node import Const, Expr
from superopt.te.expr.tensor import Tensor, cast, compare, conjunction, const, select


def round_to_float32(value: float) -> float:
    """Round `value` to float32, as an ONNX float attribute stores it."""
    return float(np.float32(value))


def canonical_floats(*keys: str) -> Canonical:
    """Canonical form: the attributes `keys` are floats that a float32 can hold."""

    def canonical(types: Types, attrs: dict[str, Attr]) -> dict[str, Attr]:
        found: dict[str, Attr] = {}
        for key in keys:
            value = attrs[key]
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise InferError(f"attribute {key} must be a number, not {value!r}")
            found[key] = round_to_float32(value)
        return attrs | found

    return canonical


def canonical_flags(*keys: str) -> Canonical:
    """Canonical form: the attributes `keys` are 0 or 1."""

    def canonical(types: Types, attrs: dict[str, Attr]) -> dict[str, Attr]:
        return attrs | {key: int(bool(attrs[key])) for key in keys}

    return canonical


def attribute_constant(value: float, dtype: DType) -> Const:
    """Return a float attribute as a constant of `dtype`. Raises InferError for a fraction in an
    integer type."""
    if not dtype.is_float and value != int(value):
        raise InferError(f"{value} is no {dtype}")
    return const(value if dtype.is_float else int(value), dtype)


def accumulation_dtype(dtype: DType) -> DType:
    """Return the accumulation type of `dtype`: float32 for 16-bit floats.

    A float16 sum overflows at 65504 where the mean does not; all runtimes accumulate in float32.
    """
    return F32 if dtype in (F16, BF16) else dtype


def widen(e: Expr) -> Expr:
    """Convert `e` to accumulation precision."""
    return cast(e, accumulation_dtype(e.dtype))


def interpolate(values: Sequence[Expr], weights: Sequence[Expr]) -> Expr:
    """The sum of `values` times `weights`, which add up to 1; of equal values, that value.

    Rounded weights do not add up to exactly 1, so that the sum alone may be off by some units in
    the last place. values, weights: at least one, all of one float type.
    """
    total = reduce(add, (v * w for v, w in zip(values, weights, strict=True)))
    first, *others = values
    return select(conjunction(*(compare("eq", first, v) for v in others)), first, total)


def expect_kinds(context: str, kinds: str, *xs: Tensor | None) -> None:
    """Raise InferError unless the element type of each operand is of one of `kinds`."""
    for x in xs:
        if x is not None and x.dtype.kind not in kinds:
            raise InferError(f"{context} of {x.type}: its elements cannot be {x.dtype}")
