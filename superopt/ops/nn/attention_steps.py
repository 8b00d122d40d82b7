"""The steps of attention: scores, their cap and bias, softmax, the weighted sum of values.

Operands have four axes: (batch, heads, sequence, size). Queries of more heads than keys have five
(grouped-query attention): (batch, heads of keys, queries of one of these, sequence, size).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from superopt.ir.op import InferError
from superopt.ops.shared.precision import narrow_tensor, widen_tensor
from superopt.ops.shared.scalars import accumulation_dtype
from superopt.te.analysis.size_oracle import are_sizes_broadcast_equal
from superopt.te.expr import index
from superopt.te.expr.dtype import BOOL, I64, DType
from superopt.te.expr.node import Expr
from superopt.te.expr.tensor import (
    Dim,
    Tensor,
    apply,
    cast,
    compare,
    compute,
    const,
    in_range,
    reduce_max,
    reduce_sum,
    select,
)


def group_heads(context: str, q: Tensor, own: Dim) -> Tensor:
    """Return the queries in `own` groups of heads."""
    batch, heads, *rest = q.shape
    if own == heads:
        return q
    if not isinstance(own, int) or not isinstance(heads, int) or heads % own:
        raise InferError(f"{context}: {heads} heads of q are not a multiple of {own} of k and v")
    times = heads // own
    return compute((batch, own, times, *rest), lambda b, g, r, s, d: q[b, g * times + r, s, d])


def join_groups(x: Tensor) -> Tensor:
    """Return heads on one axis."""
    if x.rank == 4:
        return x
    batch, groups, times, *rest = x.shape
    heads = index.dim(index.as_index(groups) * times)
    return compute((batch, heads, *rest), lambda b, h, s, t: x[b, h // times, h % times, s, t])


def attention_scores(q: Tensor, k: Tensor, scale: Expr) -> Tensor:
    """Return scale * q k^T, (batch, heads, queries, keys). Operands of 16 bits are each scaled by
    sqrt(scale), wider ones by one factor, which gives the same up to rounding."""
    exact = accumulation_dtype(q.dtype) == q.dtype
    root = cast(scale if exact else apply("sqrt", scale), q.dtype)
    left = widen_tensor(compute(q.shape, lambda *i: q[i] * root, name="q"))
    right = k if exact else widen_tensor(compute(k.shape, lambda *i: k[i] * root, name="k"))
    size = q.shape[-1]

    def element(*i: Expr) -> Expr:
        *own, t = i
        return reduce_sum(size, lambda d: left[(*own, d)] * right[(*own[:2], t, d)])

    out = compute((*q.shape[:-1], k.shape[2]), element, name="scores")
    return narrow_tensor(out, q.dtype)


def attention_weights(x: Tensor, bias: Tensor | None, precision: DType) -> Tensor:
    """Softmax along the last axis in `precision`; zero where `bias` masks all keys."""
    wide = compute(x.shape, lambda *i: cast(x[i], precision), name="wide")
    keys = x.shape[-1]
    top = compute(x.shape[:-1], lambda *i: reduce_max(keys, lambda t: wide[(*i, t)]), name="top")
    powers = compute(x.shape, lambda *i: apply("exp", wide[i] - top[i[:-1]]), name="powers")
    total = compute(
        x.shape[:-1], lambda *i: reduce_sum(keys, lambda t: powers[(*i, t)]), name="total"
    )

    def share(*i: Expr) -> Expr:
        return powers[i] / total[i[:-1]]

    if bias is None:
        return compute(x.shape, lambda *i: cast(share(*i), x.dtype), name="weights")
    allowed = compute(
        bias.shape[:-1],
        lambda *i: compare(
            "ne",
            reduce_max(bias.shape[-1], lambda t: bias[(*i, t)]),
            _negative_infinity(bias.dtype),
        ),
        name="allowed",
    )

    def guarded(*i: Expr) -> Expr:
        row = _bias_index(allowed, x, i)
        return cast(select(allowed[row], share(*i), const(0, precision)), x.dtype)

    return compute(x.shape, guarded, name="weights")


def weighted_values(weights: Tensor, v: Tensor) -> Tensor:
    """Return the weighted sum of the values."""
    shares, values = widen_tensor(weights), widen_tensor(v)

    def element(*i: Expr) -> Expr:
        *own, d = i
        return reduce_sum(v.shape[2], lambda t: shares[(*own, t)] * values[(*own[:2], t, d)])

    out = compute((*weights.shape[:-1], v.shape[3]), element, name="attended")
    return narrow_tensor(out, v.dtype)


def _negative_infinity(dtype: DType) -> Expr:
    return const(-math.inf, dtype)


def mask_bias(
    context: str,
    dtype: DType,
    shape: Sequence[Dim],
    mask: Tensor | None,
    valid_keys: Tensor | None,
    past_keys: Dim,
    causal: bool,
    left: int,
    right: int,
) -> Tensor | None:
    """Return the bias added to the scores, with size-1 axes where it is constant, or None.

    valid_keys: number of valid keys for each batch element; the queries are the last of them.
    past_keys: keys before the queries otherwise. left, right: window sizes of each query, -1 for
    unlimited.
    """
    banded = causal or left >= 0 or right >= 0
    if mask is None and valid_keys is None and not banded:
        return None
    batch, _, queries, keys = shape
    own = (1,) * (4 - mask.rank) + mask.shape if mask is not None else (1, 1, 1, keys)
    if len(own) != 4:
        raise InferError(f"{context}: the mask is {mask.type if mask else None}")
    for n, wanted in zip(own[:3], shape[:3], strict=True):
        if n not in (1, wanted) and (wanted == 1 or not are_sizes_broadcast_equal(n, wanted)):
            raise InferError(f"{context}: mask {mask.type if mask else None}, {n} != {wanted}")
    dims = (
        batch if valid_keys is not None else own[0],
        own[1],
        queries if banded else own[2],
        keys,
    )

    def masked(b: Expr, h: Expr, s: Expr, t: Expr) -> Expr | None:
        if mask is None:
            return None
        place = [0 if n == 1 else e for n, e in zip(own, (b, h, s), strict=False)]
        value: Expr = mask[(*place[4 - mask.rank :], t)]
        if mask.dtype == BOOL:
            value = select(value, const(0, dtype), _negative_infinity(dtype))
        return (
            value
            if own[3] == keys
            else select(in_range(t, own[3]), value, _negative_infinity(dtype))
        )

    def element(b: Expr, h: Expr, s: Expr, t: Expr) -> Expr:
        out = masked(b, h, s, t)
        guards: list[Expr] = []
        here, there = index.as_index(s + past_keys), t
        if valid_keys is not None:
            count = cast(valid_keys[b], I64)
            here = cast(s, I64) + count - cast(index.as_index(queries), I64)
            there = cast(t, I64)
            guards.append(there < count)
        if causal:
            guards.append(there <= here)
        if left >= 0:
            guards.append(here - left <= there)
        if right >= 0:
            guards.append(there <= here + right)
        for g in guards:
            part = select(g, const(0, dtype), _negative_infinity(dtype))
            out = part if out is None else out + part
        assert out is not None
        return out

    return compute(dims, element, name="bias")


def default_scale(context: str, scale: float | None, q: Tensor) -> Expr:
    """The scale of the scores: by default one over the root of the head size."""
    kind = accumulation_dtype(q.dtype)
    if scale is None:
        return const(1, kind) / apply("sqrt", cast(index.as_index(q.shape[3]), kind))
    if scale < 0:
        raise InferError(f"{context}: the scale {scale} has no square root")
    return const(scale, kind)


def apply_softcap(x: Tensor, softcap: float) -> Tensor:
    """c tanh(x / c)."""
    if softcap <= 0:
        return x
    cap = const(softcap, x.dtype)
    return compute(x.shape, lambda *i: apply("tanh", x[i] / cap) * cap, name="capped")


def add_bias(x: Tensor, bias: Tensor) -> Tensor:
    return compute(x.shape, lambda *i: x[i] + bias[_bias_index(bias, x, i)], name="biased")


def hide_padding(x: Tensor, valid_keys: Tensor) -> Tensor:
    """Return the scores with -inf from the number of valid keys on, whatever they are there."""

    def element(*i: Expr) -> Expr:
        is_valid = compare("lt", cast(i[-1], I64), cast(valid_keys[i[0]], I64))
        return select(is_valid, x[i], _negative_infinity(x.dtype))

    return compute(x.shape, element, name="visible")


def _bias_index(bias: Tensor, x: Tensor, i: Sequence[Expr]) -> tuple[Dim | Expr, ...]:
    """Return the index in a bias, or in its first axes, of the scores' element `i`."""
    b, *heads, s, t = i
    head = heads[0] if len(heads) == 1 else index.as_index(heads[0] * x.shape[2] + heads[1])
    full = (b, head, s, t)[: bias.rank]
    return tuple(0 if n == 1 else e for n, e in zip(bias.shape, full, strict=True))
