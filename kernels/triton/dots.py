"""Matrix products of a tile as tl.dot: which updates are dots, and their operands."""

from __future__ import annotations

from collections.abc import Sequence

from superopt.kernels.loops.tile import Update
from superopt.kernels.triton import values
from superopt.kernels.triton.dot_limits import (
    MIN_BYTE_DOT_TERMS,
    MIN_DOT_COLUMNS,
    MIN_DOT_EXTENT,
)
from superopt.kernels.triton.functions import FLOAT16_DTYPES, constant_text
from superopt.kernels.triton.writer import Writer, block_shape, non_unit_axes
from superopt.te.expr.dtype import BF16, F16, F32, I8, I32, DType
from superopt.te.expr.node import Apply, Axis, Expr, Load

_Operand = tuple[Expr, tuple[Axis, ...]]


def match_dot(s: Update, interpreted: bool) -> tuple[_Operand, _Operand] | None:
    """Match a matrix product that tl.dot takes: its two factors with their tiles; None
    otherwise."""
    axes, over = non_unit_axes(s.axes), non_unit_axes(s.over)
    match s.fn, s.value, axes, over:
        case "sum", Apply("mul", (x, y)), (m, n), (k,):
            pass
        case _:
            return None
    x, y = _without_widening(x, y, (F16,) if interpreted else FLOAT16_DTYPES)
    of_bytes = s.buffer.dtype == I32 and x.dtype == y.dtype == I8
    if not of_bytes and (s.buffer.dtype != F32 or x.dtype not in (F16, BF16, F32)):
        return None
    high, wide, deep = block_shape((m, n, k))
    if min(high, deep) < MIN_DOT_EXTENT or wide < MIN_DOT_COLUMNS:
        return None
    if of_bytes and deep < MIN_BYTE_DOT_TERMS:
        return None
    hanging = [values.dependent_axes(e, (m, n, k)) for e in (x, y)]
    if hanging == [(n, k), (m, k)]:
        x, y = y, x
    elif hanging != [(m, k), (n, k)]:
        return None
    return (x, (m, k)), (y, (k, n))


def _without_widening(x: Expr, y: Expr, kinds: Sequence[DType]) -> tuple[Expr, Expr]:
    """Return 16-bit operands without their cast to float32 for the product, and int8 ones without
    that to int32, which are exact within a dot."""
    match x, y:
        case Apply("cast", (a,), f), Apply("cast", (b,), g) if f == g == F32:
            if a.dtype == b.dtype and a.dtype in kinds:
                return a, b
        case Apply("cast", (a,), f), Apply("cast", (b,), g) if f == g == I32:
            if a.dtype == b.dtype == I8:
                return a, b
    return x, y


def dot_operand(w: Writer, e: Expr, tile: tuple[Axis, ...], summed: Axis) -> str:
    """Return a factor of a dot, 0 beyond the extent of the summed axis."""
    w.begin_tile(tile)
    b = values.emit_value(w, e)
    text = values.full_block(w, b, e.dtype)
    inside = values.bounds_mask(w, frozenset((summed,)))
    if inside is None or (isinstance(e, Load) and e.tensor not in w.registers - w.zeroed):
        return text  # what is read is 0 there
    return f"tl.where({inside.text}, {text}, {constant_text(0, e.dtype)})"
