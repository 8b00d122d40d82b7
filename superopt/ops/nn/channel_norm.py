"""Normalizations with a scale and a bias for each channel (axis 1): Batch, Instance, Group."""

from __future__ import annotations

from superopt.ir.op import Attr, InferError, Types, op
from superopt.ops.nn.norm import EPSILON, statistics
from superopt.ops.shared.broadcasting import chain_canonical
from superopt.ops.shared.scalars import (
    accumulation_dtype,
    canonical_flags,
    canonical_floats,
    expect_kinds,
    round_to_float32,
    widen,
)
from superopt.ops.shared.sizes import floor_div
from superopt.te.analysis.size_oracle import are_shapes_equal, are_sizes_equal
from superopt.te.expr import index
from superopt.te.expr.dtype import F32, DType
from superopt.te.expr.node import Dim, Expr
from superopt.te.expr.tensor import Tensor, apply, cast, compute, product, reduce_sum


def _check_per_channel(context: str, x: Tensor, *others: Tensor) -> None:
    """Raise InferError unless `x` is (batch, channels, ...) and each other operand (channels,)."""
    expect_kinds(context, "f", x, *others)
    if x.rank < 2:
        raise InferError(f"{context} of {x.type}: needs a batch and channels")
    for other in others:
        if not are_shapes_equal(other.shape, (x.shape[1],)):
            raise InferError(
                f"{context} of {x.type}: {other.type} is not one number for each channel"
            )


def _momentum_attrs(types: Types, attrs: dict[str, Attr]) -> dict[str, Attr]:
    """Canonical attributes: the momentum has no effect in inference."""
    return attrs if attrs["training_mode"] else attrs | {"momentum": round_to_float32(0.9)}


@op(
    "BatchNormalization",
    example=(
        "f32[2,3,4,4] f32[3] f32[3] f32[3] f32[3]",
        "f32[2,3,4,4] f32[3] f32[3] f32[3] f32[3] training_mode=1",
    ),
    since=7,
    canonical=chain_canonical(
        canonical_floats("epsilon", "momentum"), canonical_flags("training_mode"), _momentum_attrs
    ),
)
def batch_normalization(
    x: Tensor,
    scale: Tensor,
    b: Tensor,
    input_mean: Tensor,
    input_var: Tensor,
    *,
    epsilon: float = EPSILON,
    momentum: float = round_to_float32(0.9),
    training_mode: int = 0,
) -> tuple[Tensor, ...]:
    """(x - mean) / sqrt(var + epsilon) * scale + b with the mean and variance that are given.

    In training mode they are those of `x`, and the running ones are further results.
    """
    _check_per_channel("BatchNormalization", x, scale, b, input_mean, input_var)
    kinds = {accumulation_dtype(t.dtype) for t in (x, scale, b, input_mean, input_var)}
    kind = max(kinds, key=lambda d: d.bits)
    mean, var = input_mean, input_var
    running: list[Tensor] = []
    if training_mode:
        mean, var = _channel_statistics(x, kind)
        for old, new in ((input_mean, mean), (input_var, var)):
            running.append(_running_statistic(old, new, momentum))

    def element(*i: Expr) -> Expr:
        c = i[1]
        deviation = apply("sqrt", cast(var[c], kind) + epsilon)
        normal = (cast(x[i], kind) - cast(mean[c], kind)) / deviation
        return cast(normal * cast(scale[c], kind) + cast(b[c], kind), x.dtype)

    return (compute(x.shape, element), *running)


def _channel_statistics(x: Tensor, dtype: DType) -> tuple[Tensor, Tensor]:
    axes = (0, *range(2, x.rank))
    mean, var = statistics(x, axes, dtype)
    ones = (0,) * (x.rank - 2)

    def flat(t: Tensor) -> Tensor:
        return compute((x.shape[1],), lambda c: t[(0, c, *ones)])

    return flat(mean), flat(var)


def _running_statistic(old: Tensor, new: Tensor, momentum: float) -> Tensor:
    """Return the running statistic: old * momentum + new * (1 - momentum)."""
    keep, rest = momentum, 1 - momentum
    return compute(
        old.shape,
        lambda c: cast(
            widen(old[c]) * keep + cast(new[c], accumulation_dtype(old.dtype)) * rest, old.dtype
        ),
    )


@op(
    "InstanceNormalization",
    example="f32[2,3,4,4] f32[3] f32[3]",
    canonical=canonical_floats("epsilon"),
)
def instance_normalization(
    x: Tensor, scale: Tensor, b: Tensor, *, epsilon: float = EPSILON
) -> Tensor:
    """Mean 0 and variance 1 over the space of each instance and channel, then scale and bias."""
    _check_per_channel("InstanceNormalization", x, scale, b)
    kind = accumulation_dtype(x.dtype)
    mean, variance = statistics(x, tuple(range(2, x.rank)), kind)
    zeros = (0,) * (x.rank - 2)

    def element(*i: Expr) -> Expr:
        at: tuple[Expr | int, ...] = (i[0], i[1], *zeros)
        normal = (cast(x[i], kind) - mean[at]) / apply("sqrt", variance[at] + epsilon)
        return cast(normal * widen(scale[i[1]]) + widen(b[i[1]]), x.dtype)

    return compute(x.shape, element)


@op(
    "GroupNormalization",
    example="f32[2,6,3,3] f32[6] f32[6] num_groups=2",
    since=21,
    canonical=canonical_floats("epsilon"),
)
def group_normalization(
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    *,
    num_groups: Dim,
    epsilon: float = EPSILON,
    stash_type: DType = F32,
) -> Tensor:
    """Mean 0 and variance 1 over the channels of each group and space, then scale and bias.

    Up to the scale all is computed in `stash_type`.
    """
    _check_per_channel("GroupNormalization", x, scale, bias)
    if not isinstance(stash_type, DType) or not stash_type.is_float:
        raise InferError(f"GroupNormalization computes in a float type, not in {stash_type}")
    batch, channels, *space = x.shape
    each = floor_div(channels, num_groups)
    if not are_sizes_equal(product((num_groups, each)), channels):
        raise InferError(f"GroupNormalization of {x.type}: {num_groups} groups of {channels}")
    total = cast(index.as_index(product((each, *space))), stash_type)

    def element_of(n: Expr, group: Expr, c: Expr, at: tuple[Expr, ...]) -> Expr:
        return cast(x[(n, group * each + c, *at)], stash_type)

    mean = compute(
        (batch, num_groups),
        lambda n, g: reduce_sum((each, *space), lambda c, *s: element_of(n, g, c, s)) / total,
    )

    def spread(n: Expr, g: Expr) -> Expr:
        def squared(c: Expr, *s: Expr) -> Expr:
            d = element_of(n, g, c, s) - mean[n, g]
            return d * d

        return reduce_sum((each, *space), squared) / total

    variance = compute((batch, num_groups), spread)

    def element(*i: Expr) -> Expr:
        at = (i[0], i[1] // each)
        d = cast(x[i], stash_type) - mean[at]
        normal = cast(d / apply("sqrt", variance[at] + epsilon), x.dtype)
        return normal * scale[i[1]] + bias[i[1]]

    return compute(x.shape, element)
