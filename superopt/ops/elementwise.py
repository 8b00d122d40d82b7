"""Operators that compute each element from the elements at the same (broadcast) place."""

from __future__ import annotations

from superopt.ir.op import op
from superopt.ops.common import at, broadcast
from superopt.te.expr import Tensor, apply, compute


def pointwise(fn: str, *xs: Tensor) -> Tensor:
    """`fn` of the broadcast operands."""
    return compute(broadcast(*(x.shape for x in xs)), lambda *i: apply(fn, *(at(x, i) for x in xs)))


@op("Add", example="f32[2,3] f32[3]", laws="elementwise commutative associative", since=7)
def add(a: Tensor, b: Tensor) -> Tensor:
    return pointwise("add", a, b)


@op("Mul", example="f32[2,3] f32[3]", laws="elementwise commutative associative", since=7)
def mul(a: Tensor, b: Tensor) -> Tensor:
    return pointwise("mul", a, b)


@op("Relu", example="f32[2,3]", laws="elementwise", since=6)
def relu(x: Tensor) -> Tensor:
    return compute(x.shape, lambda *i: apply("max", x[i], 0))


@op("Sigmoid", example="f32[2,3]", laws="elementwise", since=6)
def sigmoid(x: Tensor) -> Tensor:
    return pointwise("sigmoid", x)


@op("Tanh", example="f32[2,3]", laws="elementwise", since=6)
def tanh(x: Tensor) -> Tensor:
    return pointwise("tanh", x)
