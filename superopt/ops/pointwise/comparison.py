"""Comparisons, logic, Where, and Dropout in inference."""

from __future__ import annotations

from superopt.ir.op import Attr, InferError, Op, Types, op
from superopt.ops.pointwise.arithmetic import COMMUTATIVE_LAWS, NUMERIC_KINDS, pointwise
from superopt.ops.shared.broadcasting import broadcast, broadcast_element
from superopt.ops.shared.scalars import canonical_flags, expect_kinds
from superopt.te.expr.dtype import BOOL
from superopt.te.expr.node import Expr
from superopt.te.expr.tensor import Tensor, apply, compare, compute, conjunction, const, select


def _comparison(name: str, fn: str, since: int, kinds: str, swap: bool = False) -> Op:
    laws = "elementwise commutative" if fn == "eq" else "elementwise"

    @op(name, example="f32[2,3] f32[3]", laws=laws, since=since)
    def element(a: Tensor, b: Tensor) -> Tensor:
        expect_kinds(name, kinds, a, b)
        x, y = (b, a) if swap else (a, b)
        return compute(
            broadcast(a.shape, b.shape),
            lambda *i: compare(fn, broadcast_element(x, i), broadcast_element(y, i)),
        )

    return element


equal = _comparison("Equal", "eq", 7, "buifs")
less = _comparison("Less", "lt", 7, NUMERIC_KINDS)
less_or_equal = _comparison("LessOrEqual", "le", 12, NUMERIC_KINDS)
greater = _comparison("Greater", "lt", 7, NUMERIC_KINDS, swap=True)
greater_or_equal = _comparison("GreaterOrEqual", "le", 12, NUMERIC_KINDS, swap=True)


def _logic(name: str, fn: str) -> Op:
    @op(name, example="bool[2,3] bool[3]", laws=COMMUTATIVE_LAWS, since=7)
    def element(a: Tensor, b: Tensor) -> Tensor:
        expect_kinds(name, "b", a, b)
        return pointwise(fn, a, b)

    return element


and_ = _logic("And", "and")
or_ = _logic("Or", "or")
xor = _logic("Xor", "xor")


@op("Not", example="bool[2,3]", laws="elementwise")
def not_(x: Tensor) -> Tensor:
    expect_kinds("Not", "b", x)
    return pointwise("not", x)


@op("Where", example="bool[2,1] f32[2,3] f32[3]", laws="elementwise", since=9)
def where(condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    expect_kinds("Where by", "b", condition)
    shape = broadcast(condition.shape, x.shape, y.shape)
    return compute(
        shape,
        lambda *i: select(
            broadcast_element(condition, i), broadcast_element(x, i), broadcast_element(y, i)
        ),
    )


@op("IsNaN", example="f32[2,3]", laws="elementwise", since=9)
def is_nan(x: Tensor) -> Tensor:
    expect_kinds("IsNaN", "f", x)
    return compute(x.shape, lambda *i: apply("isnan", x[i], dtype=BOOL))


@op(
    "IsInf",
    example=("f32[2,3]", "f32[2,3] detect_negative=0"),
    laws="elementwise",
    since=10,
    canonical=canonical_flags("detect_negative", "detect_positive"),
)
def is_inf(x: Tensor, *, detect_negative: int = 1, detect_positive: int = 1) -> Tensor:
    expect_kinds("IsInf", "f", x)

    def element(*i: Expr) -> Expr:
        infinite = apply("isinf", x[i], dtype=BOOL)
        match detect_negative, detect_positive:
            case 1, 1:
                return infinite
            case 1, 0:
                return _as_expr(conjunction(infinite, x[i] < 0))
            case 0, 1:
                return _as_expr(conjunction(infinite, x[i] > 0))
            case _:
                return const(0, BOOL)

    return compute(x.shape, element)


def _as_expr(guard: Expr | bool) -> Expr:
    return const(guard, BOOL) if isinstance(guard, bool) else guard


def _dropout_attrs(types: Types, attrs: dict[str, Attr]) -> dict[str, Attr]:
    """Canonical attributes of Dropout in inference: ratio and seed have no effect. Training mode
    has no expression."""
    if attrs["training_mode"] and attrs["ratio"] != 0:
        raise InferError("Dropout in training mode is random")
    return {"ratio": None, "training_mode": None, "seed": None}


@op("Dropout", example="f32[2,3]", laws="elementwise data", since=10, canonical=_dropout_attrs)
def dropout(
    x: Tensor,
    *,
    ratio: float | None = None,
    training_mode: bool | None = None,
    seed: int | None = None,
) -> tuple[Tensor, Tensor]:
    """The operand itself, and the mask: everything is kept."""
    return compute(x.shape, lambda *i: x[i]), compute(x.shape, lambda *i: const(1, BOOL))
