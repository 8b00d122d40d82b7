"""Conversions between element types."""

from __future__ import annotations

from dataclasses import dataclass

from superopt.ir.op import Attr, Canonical, InferError, Types, op
from superopt.te.expr.dtype import (
    BOOL,
    F8E4M3FN,
    F8E4M3FNUZ,
    F8E5M2,
    F8E5M2FNUZ,
    F8E8M0,
    F32,
    F64,
    U8,
    U32,
    DType,
)
from superopt.te.expr.node import Expr
from superopt.te.expr.tensor import Tensor, apply, cast, compare, compute, const, select


@dataclass(frozen=True, slots=True)
class Overflow:
    """The result of an 8-bit float conversion that overflows without saturation.

    bound: midpoint of the greatest finite number and its successor. tie: whether the bound rounds
    up.
    """

    bound: int
    rounds_up_at_bound: bool
    to_infinity: bool


OVERFLOW = {
    F8E4M3FN: Overflow(464, rounds_up_at_bound=False, to_infinity=False),
    F8E4M3FNUZ: Overflow(248, rounds_up_at_bound=True, to_infinity=False),
    F8E5M2: Overflow(61440, rounds_up_at_bound=True, to_infinity=True),
    F8E5M2FNUZ: Overflow(61440, rounds_up_at_bound=True, to_infinity=False),
}


def convert(e: Expr, to: DType, saturate: bool = True, mode: str = "up") -> Expr:
    """Convert `e` to `to`; an overflow of an 8-bit float saturates if `saturate`.

    Raises InferError for strings and complex numbers, whose conversions have no expression.
    """
    for kind in (e.dtype, to):
        if kind.kind not in "buif":
            raise InferError(f"a conversion from {e.dtype} to {to} has no expression for {kind}")
    if to == F8E8M0 and e.dtype != to:
        return _power_of_two(cast(e, F32), mode)
    beyond = OVERFLOW.get(to)
    if saturate or beyond is None or e.dtype == to:
        return cast(e, to)
    exact = e if e.dtype == F64 else cast(e, F32)
    size = apply("abs", exact)
    over = (
        compare("le", beyond.bound, size)
        if beyond.rounds_up_at_bound
        else compare("lt", beyond.bound, size)
    )
    if not beyond.to_infinity:
        return select(over, const(float("nan"), to), cast(e, to))
    infinity = select(exact < 0, const(float("-inf"), to), const(float("inf"), to))
    return select(over, infinity, cast(e, to))


def _power_of_two(e: Expr, mode: str) -> Expr:
    """Convert a positive float32 to float8e8m0, which is the exponent of float32; saturating."""
    bits = apply("bitcast", e, dtype=U32)
    exponent = apply("bitand", apply("shr", bits, 23), 255)
    fraction = apply("bitand", bits, (1 << 23) - 1)
    half = 1 << 22
    match mode:
        case "up":
            more = compare("lt", 0, fraction)
        case "nearest":
            more = compare("le", half, fraction)
        case "down":
            more = const(0, BOOL)
        case _:
            raise InferError(f"no round_mode {mode!r}: up, down or nearest")
    rounded = apply("min", exponent + cast(more, U32), 254)
    nan = apply("isnan", e, dtype=BOOL)
    return apply("bitcast", cast(select(nan, 255, rounded), U8), dtype=F8E8M0)


def _saturation_attrs(target: DType | None, attrs: dict[str, Attr]) -> dict[str, Attr]:
    """Canonical attributes: `saturate` and `round_mode` matter for some 8-bit floats only."""
    saturate, mode = int(bool(attrs["saturate"])), attrs["round_mode"]
    if target == F8E8M0 and not saturate:
        raise InferError(f"a conversion to {target} that does not saturate has no expression")
    if target not in OVERFLOW:
        saturate = 1
    return attrs | {"saturate": saturate, "round_mode": mode if target == F8E8M0 else "up"}


def _cast_attrs(types: Types, attrs: dict[str, Attr]) -> dict[str, Attr]:
    to = attrs["to"]
    if not isinstance(to, DType):
        raise InferError(f"Cast to {to}, which is not an element type")
    return _saturation_attrs(to, attrs)


def _cast_like_attrs(operand: int) -> Canonical:
    def canonical(types: Types, attrs: dict[str, Attr]) -> dict[str, Attr]:
        t = types[operand] if operand < len(types) else None
        return _saturation_attrs(None if t is None else t.dtype, attrs)

    return canonical


@op(
    "Cast",
    example=("f32[2,3] to=i32", "i32[2,3] to=f16", "f32[2,3] to=f8e5m2 saturate=0"),
    laws="elementwise",
    since=6,
    canonical=_cast_attrs,
)
def cast_(x: Tensor, *, to: DType, saturate: int = 1, round_mode: str = "up") -> Tensor:
    """Each element converted: rounded to floats, truncated to integers, nonzero as a bool."""
    return compute(x.shape, lambda *i: convert(x[i], to, bool(saturate), round_mode))


@op(
    "CastLike",
    example="f32[2,3] i32[]",
    laws="elementwise",
    since=15,
    canonical=_cast_like_attrs(1),
)
def cast_like(x: Tensor, target: Tensor, *, saturate: int = 1, round_mode: str = "up") -> Tensor:
    """Cast to the element type of the second operand, whose elements say nothing."""
    return compute(x.shape, lambda *i: convert(x[i], target.dtype, bool(saturate), round_mode))


@op("BitCast", example=("f32[2,3] to=i32", "i32[2,3] to=u32"), laws="elementwise", since=26)
def bit_cast(x: Tensor, *, to: DType) -> Tensor:
    """The bits of each element, read as another type of the same width."""
    if x.dtype.bits != to.bits or not to.is_number or x.dtype.kind not in "buif":
        raise InferError(f"BitCast of {x.type} to {to}: not types of numbers of one width")
    if x.dtype == to or x.dtype == BOOL or (x.dtype.is_int and to.is_int):
        return compute(x.shape, lambda *i: cast(x[i], to))
    return compute(x.shape, lambda *i: apply("bitcast", x[i], dtype=to))
