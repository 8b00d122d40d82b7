"""Requantization: sums of scaled integers, limited and rounded to integers."""

from __future__ import annotations

from collections.abc import Callable

from superopt.kernels.llvm.builder import Value
from superopt.kernels.llvm.functions import emit_fma, emit_function
from superopt.kernels.llvm.writer import Writer, match_lanes
from superopt.te.expr.dtype import F32, I32
from superopt.te.expr.node import Apply, Const, Expr, Load

INT32_RANGE = -(2.0**31), 2.0**31 - 1


def match_rounded_integer(e: Expr) -> Expr | None:
    """Return what is rounded to int32, if constants limit it to that."""
    match e:
        case Apply("cast", (Apply("round", (x,)),), dtype) if dtype == I32 and x.dtype == F32:
            return None if _range(e) is None else x
    return None


def match_narrowed_integer(e: Expr) -> Expr | None:
    """Return x of f32(u8(x)) or f32(i8(x)), for an int32 whose conversion changes nothing."""
    match e:
        case Apply("cast", (Apply("cast", (x,), narrow),), dtype) if dtype == F32:
            found = _range(x) if x.dtype == I32 and narrow.is_int and narrow.bits <= 8 else None
            low = -(1 << (narrow.bits - 1)) if narrow.kind == "i" else 0
            if found is not None and low <= found[0] and found[1] < low + (1 << narrow.bits):
                return x
    return None


def _is_integer_sum(e: Expr) -> bool:
    """True for a float32 sum or product of nothing but integers, constants and elements of tensors.
    What rounds such a sum does not depend on whether its products are rounded before."""
    match e:
        case Apply("add" | "mul", args):
            return e.dtype == F32 and all(map(_is_integer_sum, args))
        case Apply("cast", (x,)):
            return x.dtype.is_int
    return isinstance(e, Const | Load)


def _range(e: Expr) -> tuple[float, float] | None:
    """Return the range of a limited and rounded float32 as int32, plus constants."""
    match e:
        case Apply("add", (x, Const(value=c)), dtype) if dtype == I32:
            found = _range(x)
            return None if found is None else (found[0] + float(c), found[1] + float(c))
        case Apply("cast", (Apply("round", (x,)),)):
            match x:
                case Apply("min", (Apply("max", (_, Const(value=low))), Const(value=high))):
                    least, most = float(low), float(high)
                    inside = INT32_RANGE[0] <= least <= most < INT32_RANGE[1]
                    return (least, most) if inside else None
    return None


def emit_rounded_integer(w: Writer, e: Expr, emit: Callable[[Expr], Value]) -> Value:
    """Emit a limited float32 as the nearest int32, ties to even, in one instruction. Out of range
    it is arbitrary. emit: emits an expression."""
    x = _emit_limited_sum(w, e, emit)
    out = w.t.call(f"llvm.lrint.{Value('', I32, x.lanes).suffix}.{x.suffix}", [x], I32)
    return w.t.make(f"freeze {out}", I32, x.lanes)


def _emit_limited_sum(w: Writer, e: Expr, emit: Callable[[Expr], Value]) -> Value:
    """Emit what is rounded; sums of scaled integers by fused multiply-adds."""
    match e:
        case Apply("min" | "max" as fn, (x, Const() as limit)):
            some = match_lanes(w, [_emit_limited_sum(w, x, emit), emit(limit)])
            return emit_function(w.t, fn, some, e.dtype)
    return _emit_fused_sum(w, e, emit) if _is_integer_sum(e) else emit(e)


def _emit_fused_sum(w: Writer, e: Expr, emit: Callable[[Expr], Value]) -> Value:
    match e:
        case Apply("add", (Apply("mul", (x, y)), rest) | (rest, Apply("mul", (x, y)))):
            a, b, c = match_lanes(w, [emit(x), emit(y), _emit_fused_sum(w, rest, emit)])
            return emit_fma(w.t, a, b, c)
    return emit(e)
