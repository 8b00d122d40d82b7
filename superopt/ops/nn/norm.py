"""Normalizations along axes: Softmax, LogSoftmax, Layer, RMS, MeanVariance, Lp, LRN."""

from __future__ import annotations

from superopt.ir.op import Attr, InferError, Types, op
from superopt.ops.reductions.reduce import mean_of, reduce_over, reduced_shape
from superopt.ops.shared.broadcasting import (
    broadcast,
    broadcast_element,
    canonical_axes,
    canonical_axis,
    chain_canonical,
)
from superopt.ops.shared.scalars import (
    accumulation_dtype,
    canonical_floats,
    expect_kinds,
    round_to_float32,
    widen,
)
from superopt.te.analysis.size_oracle import are_shapes_equal
from superopt.te.expr import index
from superopt.te.expr.dtype import F32, DType
from superopt.te.expr.node import Expr
from superopt.te.expr.tensor import (
    Tensor,
    apply,
    cast,
    compare,
    compute,
    in_range,
    reduce_sum,
    select,
)

EPSILON = round_to_float32(1e-5)


def _shifted_exp(x: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """x less its maximum along `axis`, and the sum of its exponentials there.

    In the type of x, step by step, as ONNX's function bodies define both users.
    """
    shape = reduced_shape(x, (axis,), keepdims=False)
    top = compute(shape, lambda *i: reduce_over("max", x, (axis,), i, lambda *k: x[k]))

    def kept(i: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return (*i[:axis], *i[axis + 1 :])

    shifted = compute(x.shape, lambda *i: x[i] - top[kept(i)])
    total = compute(
        shape,
        lambda *i: reduce_over("sum", shifted, (axis,), i, lambda *k: apply("exp", shifted[k])),
    )
    return shifted, total


@op("Softmax", example="f32[2,3,4] axis=1", since=13, canonical=canonical_axis())
def softmax(x: Tensor, *, axis: int = -1) -> Tensor:
    """exp(x) over its sum along `axis`."""
    expect_kinds("Softmax", "f", x)
    shifted, total = _shifted_exp(x, axis)
    return compute(
        x.shape,
        lambda *i: apply("exp", shifted[i]) / total[(*i[:axis], *i[axis + 1 :])],
    )


@op("LogSoftmax", example="f32[2,3,4] axis=1", since=13, canonical=canonical_axis())
def log_softmax(x: Tensor, *, axis: int = -1) -> Tensor:
    """The logarithm of Softmax, computed without its underflow."""
    expect_kinds("LogSoftmax", "f", x)
    shifted, total = _shifted_exp(x, axis)
    return compute(
        x.shape,
        lambda *i: shifted[i] - apply("log", total[(*i[:axis], *i[axis + 1 :])]),
    )


def statistics(x: Tensor, axes: tuple[int, ...], dtype: DType) -> tuple[Tensor, Tensor]:
    """Return mean and population variance of `x` over `axes` (kept with size 1), computed in
    `dtype`."""
    shape = reduced_shape(x, axes)
    mean = compute(shape, lambda *i: mean_of(x, axes, i, lambda *k: cast(x[k], dtype)))

    def squared(*k: Expr) -> Expr:
        d = cast(x[k], dtype) - broadcast_element(mean, k)
        return d * d

    return mean, compute(shape, lambda *i: mean_of(x, axes, i, squared))


def _check_stash_type(what: str, value: object) -> DType:
    if not isinstance(value, DType) or not value.is_float:
        raise InferError(f"{what} computes in a float type, not in {value}")
    return value


def _trailing_axes(x: Tensor, axis: int, *others: Tensor | None) -> tuple[int, ...]:
    """Return the axes from `axis` on. Raises InferError unless the other operands broadcast to
    `x`."""
    for other in others:
        if other is not None and not are_shapes_equal(broadcast(x.shape, other.shape), x.shape):
            raise InferError(f"{other.type} does not broadcast to {x.type}")
    return tuple(range(axis, x.rank))


_AXIS_EPSILON_ATTRS = chain_canonical(canonical_axis(), canonical_floats("epsilon"))


@op(
    "LayerNormalization",
    example=("f32[2,3,4] f32[4] f32[4]", "f32[2,3,4] f32[3,4] axis=1"),
    since=17,
    canonical=_AXIS_EPSILON_ATTRS,
)
def layer_normalization(
    x: Tensor,
    scale: Tensor,
    b: Tensor | None = None,
    *,
    axis: int = -1,
    epsilon: float = EPSILON,
    stash_type: DType = F32,
) -> tuple[Tensor, Tensor, Tensor]:
    """(x - mean) / sqrt(variance + epsilon) * scale + b over the axes from `axis` on.

    Also the mean and the inverse deviation. Up to the scale all is computed in `stash_type`.
    """
    expect_kinds("LayerNormalization", "f", x, scale, b)
    stash = _check_stash_type("LayerNormalization", stash_type)
    mean, variance = statistics(x, _trailing_axes(x, axis, scale, b), stash)
    inverse = compute(mean.shape, lambda *i: 1 / apply("sqrt", variance[i] + epsilon))

    def element(*i: Expr) -> Expr:
        normal = cast(
            (cast(x[i], stash) - broadcast_element(mean, i)) * broadcast_element(inverse, i),
            x.dtype,
        )
        scaled = normal * broadcast_element(scale, i)
        return scaled if b is None else scaled + broadcast_element(b, i)

    return compute(x.shape, element), mean, inverse


@op("RMSNormalization", example="f32[2,3,4] f32[4]", since=23, canonical=_AXIS_EPSILON_ATTRS)
def rms_normalization(
    x: Tensor,
    scale: Tensor,
    *,
    axis: int = -1,
    epsilon: float = EPSILON,
    stash_type: DType = F32,
) -> Tensor:
    """x / sqrt(mean(x^2) + epsilon) * scale over the axes from `axis` on, in `stash_type`."""
    expect_kinds("RMSNormalization", "f", x, scale)
    stash = _check_stash_type("RMSNormalization", stash_type)
    axes = _trailing_axes(x, axis, scale)

    def squared(*k: Expr) -> Expr:
        e = cast(x[k], stash)
        return e * e

    square = compute(reduced_shape(x, axes), lambda *i: mean_of(x, axes, i, squared))

    def element(*i: Expr) -> Expr:
        normal = cast(x[i], stash) / apply("sqrt", broadcast_element(square, i) + epsilon)
        return cast(cast(normal, x.dtype), scale.dtype) * broadcast_element(scale, i)

    return compute(x.shape, element)


@op("MeanVarianceNormalization", example="f32[2,3,4,5]", since=9, canonical=canonical_axes())
def mean_variance_normalization(x: Tensor, *, axes: tuple[int, ...] = (0, 2, 3)) -> Tensor:
    """(x - mean) / (deviation + 1e-9) over `axes`."""
    expect_kinds("MeanVarianceNormalization", "f", x)
    mean, variance = statistics(x, axes, accumulation_dtype(x.dtype))
    tiny = round_to_float32(1e-9)
    return compute(
        x.shape,
        lambda *i: cast(
            (widen(x[i]) - broadcast_element(mean, i))
            / (apply("sqrt", broadcast_element(variance, i)) + tiny),
            x.dtype,
        ),
    )


@op(
    "LpNormalization",
    example=("f32[2,3] axis=1", "f32[2,3] axis=0 p=1"),
    canonical=canonical_axis(),
)
def lp_normalization(x: Tensor, *, axis: int = -1, p: int = 2) -> Tensor:
    """x over its 1-norm or 2-norm along `axis`; zero where the norm is zero."""
    expect_kinds("LpNormalization", "f", x)
    if p not in (1, 2):
        raise InferError(f"LpNormalization has p {p}, not 1 or 2")

    def term(*k: Expr) -> Expr:
        e = widen(x[k])
        return apply("abs", e) if p == 1 else e * e

    def length(*i: Expr) -> Expr:
        total = reduce_over("sum", x, (axis,), i, term)
        return total if p == 1 else apply("sqrt", total)

    norm = compute(reduced_shape(x, (axis,)), length)

    def element(*i: Expr) -> Expr:
        n = broadcast_element(norm, i)
        return cast(select(compare("eq", n, 0), 0, widen(x[i]) / n), x.dtype)

    return compute(x.shape, element)


def _lrn_attrs(types: Types, attrs: dict[str, Attr]) -> dict[str, Attr]:
    size = attrs["size"]
    if not isinstance(size, int) or size < 1:
        raise InferError(f"LRN sums over {size} channels, not over at least 1")
    return attrs


@op(
    "LRN",
    example="f32[2,5,3,3] size=3",
    canonical=chain_canonical(canonical_floats("alpha", "beta", "bias"), _lrn_attrs),
)
def lrn(
    x: Tensor,
    *,
    size: int,
    alpha: float = round_to_float32(1e-4),
    beta: float = 0.75,
    bias: float = 1.0,
) -> Tensor:
    """x / (bias + alpha / size * s) ^ beta, s the squares of `size` channels around x's, summed."""
    expect_kinds("LRN", "f", x)
    if x.rank < 3:
        raise InferError(f"LRN of {x.type}: needs a batch, channels and space")
    channels = x.shape[1]
    before = (size - 1) // 2

    def squares(*i: Expr) -> Expr:
        def term(k: Expr) -> Expr:
            c = index.as_index(i[1] + k - before)
            e = widen(x[(i[0], c, *i[2:])])
            return select(in_range(c, channels), e * e, 0)

        return reduce_sum(size, term)

    around = compute(x.shape, squares)

    def element(*i: Expr) -> Expr:
        base = around[i] * alpha / size + bias
        return cast(widen(x[i]) / apply("pow", base, beta), x.dtype)

    return compute(x.shape, element)
