"""Operators that compute each element from the elements at the same (broadcast) place."""

from __future__ import annotations

from functools import reduce

from superopt.ir.op import InferError, Op, op
from superopt.ops.shared.broadcasting import broadcast, broadcast_element
from superopt.ops.shared.scalars import canonical_flags, expect_kinds
from superopt.te.analysis.size_oracle import are_sizes_equal
from superopt.te.expr.dtype import F64, I64, U64, DType
from superopt.te.expr.node import Expr
from superopt.te.expr.tensor import Tensor, apply, cast, compute, conjunction, const, select

NUMERIC_KINDS = "uif"
COMMUTATIVE_LAWS = "elementwise commutative associative"

MAX_FOLD_TERMS = 64  # operands that are added one after the other


def pointwise(fn: str, *xs: Tensor) -> Tensor:
    """`fn` of the broadcast operands."""
    return compute(
        broadcast(*(x.shape for x in xs)),
        lambda *i: apply(fn, *(broadcast_element(x, i) for x in xs)),
    )


def _unary(name: str, fn: str, since: int = 1, kinds: str = "f", laws: str = "") -> Op:
    example = "f32[2,3]" if "f" in kinds else "i32[2,3]"

    @op(name, example=example, laws=f"elementwise {laws}", since=since)
    def element(x: Tensor) -> Tensor:
        expect_kinds(name, kinds, x)
        return pointwise(fn, x)

    return element


def _binary(
    name: str, fn: str, since: int, kinds: str, example: str, laws: str = "elementwise"
) -> Op:
    @op(name, example=example, laws=laws, since=since)
    def element(a: Tensor, b: Tensor) -> Tensor:
        expect_kinds(name, kinds, a, b)
        return pointwise(fn, a, b)

    return element


def _variadic(name: str, fn: str, kinds: str) -> Op:
    @op(name, example="f32[2,3] f32[3] f32[2,1]", laws=COMMUTATIVE_LAWS)
    def element(*xs: Tensor) -> Tensor:
        expect_kinds(name, kinds, *xs)
        shape = broadcast(*(x.shape for x in xs))
        return compute(shape, lambda *i: _fold(fn, [broadcast_element(x, i) for x in xs]))

    return element


def _fold(fn: str, terms: list[Expr]) -> Expr:
    """Combine the terms by `fn`; many terms are combined in groups, to bound the depth of the
    expression."""
    while len(terms) > MAX_FOLD_TERMS:
        terms = [
            _fold(fn, terms[n : n + MAX_FOLD_TERMS]) for n in range(0, len(terms), MAX_FOLD_TERMS)
        ]
    return reduce(lambda a, b: apply(fn, a, b), terms)


abs_ = _unary("Abs", "abs", kinds=NUMERIC_KINDS)
neg = _unary("Neg", "neg", kinds="if", laws="linear")
sign = _unary("Sign", "sign", 9, NUMERIC_KINDS)
floor = _unary("Floor", "floor")
ceil = _unary("Ceil", "ceil")
round_ = _unary("Round", "round", 11)
sqrt = _unary("Sqrt", "sqrt")
exp = _unary("Exp", "exp")
log = _unary("Log", "log")
sin = _unary("Sin", "sin", 7)
cos = _unary("Cos", "cos", 7)
tan = _unary("Tan", "tan", 7)
asin = _unary("Asin", "asin", 7)
acos = _unary("Acos", "acos", 7)
atan = _unary("Atan", "atan", 7)
sinh = _unary("Sinh", "sinh", 9)
cosh = _unary("Cosh", "cosh", 9)
tanh = _unary("Tanh", "tanh")
asinh = _unary("Asinh", "asinh", 9)
acosh = _unary("Acosh", "acosh", 9)
atanh = _unary("Atanh", "atanh", 9)
erf = _unary("Erf", "erf", 9)
sigmoid = _unary("Sigmoid", "sigmoid")
bitwise_not = _unary("BitwiseNot", "bitnot", 18, "ui")

add = _binary("Add", "add", 7, NUMERIC_KINDS, "f32[2,3] f32[3]", COMMUTATIVE_LAWS)
mul = _binary("Mul", "mul", 7, NUMERIC_KINDS, "f32[2,3] f32[3]", COMMUTATIVE_LAWS)
sub = _binary("Sub", "sub", 7, NUMERIC_KINDS, "f32[2,3] f32[2,1]")
div = _binary("Div", "div", 7, NUMERIC_KINDS, "f32[2,3] f32[2,1]")
bitwise_and = _binary("BitwiseAnd", "bitand", 18, "ui", "i32[2,3] i32[3]", COMMUTATIVE_LAWS)
bitwise_or = _binary("BitwiseOr", "bitor", 18, "ui", "i32[2,3] i32[3]", COMMUTATIVE_LAWS)
bitwise_xor = _binary("BitwiseXor", "bitxor", 18, "ui", "i32[2,3] i32[3]", COMMUTATIVE_LAWS)

max_ = _variadic("Max", "max", NUMERIC_KINDS)
min_ = _variadic("Min", "min", NUMERIC_KINDS)
sum_ = _variadic("Sum", "add", "f")


@op("Mean", example="f32[2,3] f32[3] f32[2,1]", laws="elementwise commutative")
def mean(*xs: Tensor) -> Tensor:
    expect_kinds("Mean", "f", *xs)
    shape = broadcast(*(x.shape for x in xs))
    return compute(shape, lambda *i: _fold("add", [broadcast_element(x, i) for x in xs]) / len(xs))


@op("Reciprocal", example="f32[2,3]", laws="elementwise")
def reciprocal(x: Tensor) -> Tensor:
    expect_kinds("Reciprocal", "f", x)
    return compute(x.shape, lambda *i: 1 / x[i])


def _power_dtype(base: DType, exponent: DType) -> DType:
    """Return the type in which a power is computed before it is rounded to the base's type."""
    if base == exponent or (base.is_float and not exponent.is_float):
        return base
    if base.is_float or exponent.is_float:
        return base if base.is_float and base.bits >= exponent.bits else F64
    return U64 if exponent == U64 else I64  # wraps as the narrower type does


@op("Pow", example="f32[2,3] f32[3]", laws="elementwise", since=7)
def pow_(x: Tensor, y: Tensor) -> Tensor:
    """x to the power y, of x's type: `int ** float` is computed in float64, then truncated."""
    expect_kinds("Pow", NUMERIC_KINDS, x, y)
    kind = _power_dtype(x.dtype, y.dtype)
    return compute(
        broadcast(x.shape, y.shape),
        lambda *i: cast(
            apply("pow", cast(broadcast_element(x, i), kind), cast(broadcast_element(y, i), kind)),
            x.dtype,
        ),
    )


@op(
    "Mod",
    example=("i32[2,3] i32[3]", "f32[2,3] f32[3] fmod=1"),
    laws="elementwise",
    since=10,
    canonical=canonical_flags("fmod"),
)
def mod(a: Tensor, b: Tensor, *, fmod: int = 0) -> Tensor:
    """The remainder: with the sign of the divisor, or of the dividend when `fmod` is 1."""
    expect_kinds("Mod", NUMERIC_KINDS, a, b)
    return pointwise("fmod" if fmod else "mod", a, b)


@op(
    "BitShift",
    example=('u8[2,3] u8[3] direction="LEFT"', 'i32[2,3] i32[3] direction="RIGHT"'),
    laws="elementwise",
    since=11,
)
def bit_shift(x: Tensor, y: Tensor, *, direction: str) -> Tensor:
    """Shifts by y bits; a y outside [0, bits) leaves only the sign's extension."""
    expect_kinds("BitShift", "ui", x, y)
    if direction not in ("LEFT", "RIGHT"):
        raise InferError(f"BitShift direction {direction!r} is neither LEFT nor RIGHT")
    fn = "shl" if direction == "LEFT" else "shr"
    bits = x.dtype.bits

    def element(*i: Expr) -> Expr:
        value, by = broadcast_element(x, i), broadcast_element(y, i)
        beyond: Expr = const(0, x.dtype)
        if direction == "RIGHT" and x.dtype.kind == "i":
            beyond = select(value < 0, -1, beyond)
        fits = conjunction(*((by >= 0,) if x.dtype.kind == "i" else ()), by < bits)
        return select(fits, apply(fn, value, by), beyond)

    return compute(broadcast(x.shape, y.shape), element)


def _clip_limit(x: Tensor | None, clipped: Tensor) -> Expr | None:
    """Return the limit of a Clip, which is a tensor of one element."""
    if x is None:
        return None
    if not all(are_sizes_equal(n, 1) for n in x.shape) or x.dtype != clipped.dtype:
        raise InferError(f"Clip of {clipped.type} to a limit of {x.type}")
    return x[(0,) * x.rank]


@op("Clip", example="f32[2,3] f32[] f32[]", laws="elementwise", since=11)
def clip(x: Tensor, min: Tensor | None = None, max: Tensor | None = None) -> Tensor:
    """min(max, max(x, min)): the upper limit wins, NaN stays."""
    expect_kinds("Clip", NUMERIC_KINDS, x)
    low, high = _clip_limit(min, x), _clip_limit(max, x)

    def element(*i: Expr) -> Expr:
        e: Expr = x[i]
        e = e if low is None else apply("max", e, low)
        return e if high is None else apply("min", e, high)

    return compute(x.shape, element)


@op("Identity", example="f32[2,3]", laws="elementwise data linear")
def identity(x: Tensor) -> Tensor:
    return compute(x.shape, lambda *i: x[i])
