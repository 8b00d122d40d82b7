"""Causal depthwise convolution over a sequence, with its last inputs as state."""

from __future__ import annotations

from superopt.ir.op import InferError, op
from superopt.ops.shared.scalars import expect_kinds, widen
from superopt.te.expr import index
from superopt.te.expr.node import Expr
from superopt.te.expr.tensor import Tensor, apply, cast, compute, const, reduce_sum, select

ACTIVATIONS = ("none", "silu", "swish")


@op(
    "CausalConvWithState",
    example='f32[1,2,5] f32[2,1,3] f32[2] f32[1,2,2] activation="silu"',
    since=27,
)
def causal_conv_with_state(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
    past_state: Tensor | None = None,
    *,
    activation: str = "none",
) -> tuple[Tensor, Tensor]:
    """Each channel of x[n, c, t] convolved with w[c, 0, k], looking back; and the next state.

    The state holds the k - 1 inputs before the first; without one they are zero.
    """
    what = f"CausalConvWithState of {x.type} with {w.type}"
    expect_kinds("CausalConvWithState", "f", x, w)
    if x.rank != 3 or w.rank != 3 or w.shape[:2] != (x.shape[1], 1) or x.dtype != w.dtype:
        raise InferError(f"{what}: it takes (batch, channels, length) and (channels, 1, k)")
    if activation not in ACTIVATIONS:
        raise InferError(f"{what}: activation {activation} is not one of {', '.join(ACTIVATIONS)}")
    batch, channels, length = x.shape
    k = w.shape[2]
    before = index.dim(index.as_index(k) - 1)
    if past_state is not None and past_state.type.shape != (batch, channels, before):
        raise InferError(f"{what}: the state is {past_state.type}, not {before} long")
    if bias is not None and bias.shape != (channels,):
        raise InferError(f"{what}: the bias is {bias.type}")

    def input_at(n: Expr, c: Expr, t: Expr) -> Expr:
        """Element `t` of the state followed by x."""
        if before == 0:
            return x[n, c, t]
        old = const(0, x.dtype) if past_state is None else past_state[n, c, t]
        return select(t < before, old, x[n, c, t - before])

    def element(n: Expr, c: Expr, t: Expr) -> Expr:
        total = reduce_sum(
            k, lambda j: widen(input_at(n, c, index.as_index(t + j))) * widen(w[c, 0, j])
        )
        total = cast(total if bias is None else total + widen(bias[c]), x.dtype)
        if activation == "none":
            return total
        wide = widen(total)
        return cast(wide * apply("sigmoid", wide), x.dtype)

    state = compute(
        (batch, channels, before), lambda n, c, t: input_at(n, c, index.as_index(t + length))
    )
    return compute((batch, channels, length), element), state
