"""Activation functions: each computes in float32 at least, and rounds once at the end."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

from superopt.ir.op import InferError, Op, op
from superopt.ops.shared.broadcasting import broadcast, broadcast_element
from superopt.ops.shared.scalars import (
    attribute_constant,
    canonical_floats,
    expect_kinds,
    round_to_float32,
    widen,
)
from superopt.te.analysis.size_oracle import are_shapes_equal
from superopt.te.expr.node import Expr
from superopt.te.expr.tensor import Tensor, apply, cast, compute, const, select


def _map_elements(name: str, x: Tensor, fn: Callable[[Expr], Expr], kinds: str = "f") -> Tensor:
    """Apply `fn` to each element in accumulation precision and round to the element type of `x`."""
    expect_kinds(name, kinds, x)
    return compute(x.shape, lambda *i: cast(fn(widen(x[i])), x.dtype))


def _activation(name: str, fn: Callable[[Expr], Expr], since: int, doc: str) -> Op:
    """An activation without attributes."""

    def element(x: Tensor) -> Tensor:
        return _map_elements(name, x, fn)

    element.__doc__ = doc
    return op(name, example="f32[2,3]", laws="elementwise", since=since)(element)


def _softplus(x: Expr) -> Expr:
    # log(1 + exp(x)), written so that exp does not overflow
    return apply("max", x, 0) + apply("log", 1 + apply("exp", -apply("abs", x)))


def _hard_sigmoid(x: Expr, alpha: float | Fraction, beta: float | Fraction) -> Expr:
    return apply("max", apply("min", x * alpha + beta, 1), 0)


@op("Relu", example="f32[2,3]", laws="elementwise")
def relu(x: Tensor) -> Tensor:
    expect_kinds("Relu", "uif", x)
    return compute(x.shape, lambda *i: apply("max", x[i], 0))


softplus = _activation("Softplus", _softplus, 1, "log(1 + exp(x))")
softsign = _activation("Softsign", lambda x: x / (1 + apply("abs", x)), 1, "x / (1 + |x|)")
mish = _activation("Mish", lambda x: x * apply("tanh", _softplus(x)), 18, "x tanh(log(1 + e^x))")
hard_swish = _activation(
    "HardSwish",
    lambda x: x * _hard_sigmoid(x, Fraction(1, 6), Fraction(1, 2)),
    14,
    "x * max(0, min(1, x / 6 + 1 / 2))",
)


@op("LeakyRelu", example="f32[2,3]", laws="elementwise", canonical=canonical_floats("alpha"))
def leaky_relu(x: Tensor, *, alpha: float = round_to_float32(0.01)) -> Tensor:
    return _map_elements("LeakyRelu", x, lambda e: select(e < 0, e * alpha, e))


@op("PRelu", example="f32[2,3] f32[3]", laws="elementwise", since=7)
def prelu(x: Tensor, slope: Tensor) -> Tensor:
    expect_kinds("PRelu", "uif", x)
    if not are_shapes_equal(broadcast(x.shape, slope.shape), x.shape):
        raise InferError(f"PRelu: slope {slope.type} does not broadcast to {x.type}")
    return compute(x.shape, lambda *i: select(x[i] < 0, broadcast_element(slope, i) * x[i], x[i]))


@op("Elu", example="f32[2,3]", laws="elementwise", canonical=canonical_floats("alpha"))
def elu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return _map_elements("Elu", x, lambda e: select(e < 0, (apply("exp", e) - 1) * alpha, e))


@op("Selu", example="f32[2,3]", laws="elementwise", canonical=canonical_floats("alpha", "gamma"))
def selu(
    x: Tensor,
    *,
    alpha: float = round_to_float32(1.67326319),
    gamma: float = round_to_float32(1.05070102),
) -> Tensor:
    """gamma times Elu of alpha"""

    def element(e: Expr) -> Expr:
        return select(e < 0, (apply("exp", e) * alpha - alpha) * gamma, e * gamma)

    return _map_elements("Selu", x, element)


@op(
    "Celu",
    example="f32[2,3] alpha=2.0",
    laws="elementwise",
    since=12,
    canonical=canonical_floats("alpha"),
)
def celu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """max(0, x) + min(0, alpha * (exp(x / alpha) - 1))"""

    def element(e: Expr) -> Expr:
        below = (apply("exp", e / alpha) - 1) * alpha
        return apply("max", e, 0) + apply("min", below, 0)

    return _map_elements("Celu", x, element)


@op(
    "ThresholdedRelu",
    example="f32[2,3]",
    laws="elementwise",
    since=10,
    canonical=canonical_floats("alpha"),
)
def thresholded_relu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return _map_elements("ThresholdedRelu", x, lambda e: select(e > alpha, e, 0))


@op(
    "HardSigmoid",
    example="f32[2,3]",
    laws="elementwise",
    canonical=canonical_floats("alpha", "beta"),
)
def hard_sigmoid(x: Tensor, *, alpha: float = round_to_float32(0.2), beta: float = 0.5) -> Tensor:
    return _map_elements("HardSigmoid", x, lambda e: _hard_sigmoid(e, alpha, beta))


@op("Gelu", example=("f32[2,3]", 'f32[2,3] approximate="tanh"'), laws="elementwise", since=20)
def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    """x times the normal distribution's mass below x, or its approximation by tanh."""
    if approximate not in ("none", "tanh"):
        raise InferError(f"Gelu has no approximation {approximate!r}: none or tanh")

    def element(e: Expr) -> Expr:
        if approximate == "tanh":
            cubic = e + e * e * e * Fraction("0.044715")
            mass = apply("tanh", cubic * Fraction(math.sqrt(2 / math.pi)))
        else:
            mass = apply("erf", e / apply("sqrt", const(2, e.dtype)))
        return e * Fraction(1, 2) * (1 + mass)

    return _map_elements("Gelu", x, element)


def _swish(e: Expr, alpha: float) -> Expr:
    return e * apply("sigmoid", e if alpha == 1 else e * alpha)


@op("Swish", example="f32[2,3]", laws="elementwise", since=24, canonical=canonical_floats("alpha"))
def swish(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """x sigmoid(alpha x)"""
    return _map_elements("Swish", x, lambda e: _swish(e, alpha))


@op(
    "SwiGLU",
    example="f32[2,3] f32[2,3]",
    laws="elementwise",
    since=28,
    canonical=canonical_floats("alpha"),
)
def swiglu(a: Tensor, b: Tensor, *, alpha: float = 1.0) -> Tensor:
    """b times Swish(a): a is the gate."""
    expect_kinds("SwiGLU", "f", a, b)
    if not are_shapes_equal(a.shape, b.shape):
        raise InferError(f"SwiGLU of {a.type} and {b.type}: the shapes differ")
    return compute(a.shape, lambda *i: cast(_swish(widen(a[i]), alpha) * widen(b[i]), a.dtype))


@op(
    "Shrink",
    example="f32[2,3]",
    laws="elementwise",
    since=9,
    canonical=canonical_floats("bias", "lambd"),
)
def shrink(x: Tensor, *, bias: float = 0.0, lambd: float = 0.5) -> Tensor:
    """x + bias below -lambd, x - bias above lambd, 0 between."""
    if not x.dtype.is_float and lambd < 0:
        raise InferError(f"Shrink of {x.type} with a negative lambd {lambd}")

    def element(e: Expr) -> Expr:
        shift = attribute_constant(bias, e.dtype)
        # x > 1.5 is x > 1 on integers; -lambd is below every unsigned number
        edge = attribute_constant(lambd if e.dtype.is_float else math.floor(lambd), e.dtype)
        above = select(e > edge, e - shift, 0)
        return above if e.dtype.kind == "u" else select(e < -edge, e + shift, above)

    return _map_elements("Shrink", x, element, "uif")
