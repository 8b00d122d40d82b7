"""Scaled dot product attention, with masks, caches, grouped heads and soft caps.

Heads, sequence and head size are separate axes throughout: (batch, heads, sequence, size). Operands
with three axes, whose last is heads times size, are brought to that form first.
"""

from __future__ import annotations

from superopt.ir.op import Attr, InferError, Types, op
from superopt.ops.movement.layout import known_type
from superopt.ops.nn.attention_steps import (
    add_bias,
    apply_softcap,
    attention_scores,
    attention_weights,
    default_scale,
    group_heads,
    hide_padding,
    join_groups,
    mask_bias,
    weighted_values,
)
from superopt.ops.shared.scalars import canonical_flags, canonical_floats, expect_kinds
from superopt.ops.shared.sizes import floor_div
from superopt.te.expr import index
from superopt.te.expr.dtype import BOOL, DType
from superopt.te.expr.tensor import Tensor, compute, select

QK_OUTPUT_MODES = range(4)  # of the fourth result: raw scores, capped, with bias, probabilities


def split_heads(context: str, x: Tensor, heads: Attr) -> Tensor:
    """(batch, sequence, heads * size) as (batch, heads, sequence, size); rank 4 as it is."""
    if x.rank == 4:
        return x
    if x.rank != 3 or not isinstance(heads, int) or heads < 1:
        raise InferError(f"{context}: {x.type} in {heads} heads")
    batch, length, hidden = x.shape
    size = floor_div(hidden, heads)
    if index.dim(index.as_index(size) * heads) != hidden:
        raise InferError(f"{context}: {x.type}, {hidden} is not a multiple of {heads} heads")
    return compute((batch, heads, length, size), lambda b, h, s, d: x[b, s, h * size + d])


def join_heads(x: Tensor) -> Tensor:
    """(batch, heads, sequence, size) as (batch, sequence, heads * size)."""
    batch, heads, length, size = x.shape
    hidden = index.dim(index.as_index(heads) * size)
    return compute((batch, length, hidden), lambda b, s, c: x[b, c // size, s, c % size])


def _append_past(past: Tensor | None, x: Tensor) -> Tensor:
    """Concatenate `past` and `x` along the sequence."""
    if past is None:
        return compute(x.shape, lambda *i: x[i])
    before = past.shape[2]
    shape = (*x.shape[:2], index.dim(index.as_index(before) + x.shape[2]), x.shape[3])
    return compute(
        shape,
        lambda b, h, t, d: select(t < before, past[b, h, t, d], x[b, h, t - before, d]),
    )


def _attention_attrs(types: Types, attrs: dict[str, Attr]) -> dict[str, Attr]:
    """Canonical attributes: head counts only where three axes need them."""
    t, shape = known_type(types)
    attrs = canonical_floats("softcap")(types, canonical_flags("is_causal")(types, attrs))
    if len(shape) == 4:
        attrs = attrs | {"q_num_heads": None, "kv_num_heads": None}
    if attrs["scale"] is not None:
        attrs = canonical_floats("scale")(types, attrs)
    if attrs["softmax_precision"] == t.dtype:
        attrs = attrs | {"softmax_precision": None}
    if attrs["qk_matmul_output_mode"] not in QK_OUTPUT_MODES:
        raise InferError(f"Attention: qk_matmul_output_mode {attrs['qk_matmul_output_mode']}")
    for side in ("left_window_size", "right_window_size"):
        size = attrs[side]
        if not isinstance(size, int) or size < -1:
            raise InferError(f"Attention: {side} {size} is less than -1")
    return attrs


def _check_shapes(context: str, q: Tensor, k: Tensor, v: Tensor) -> None:
    """Raise InferError unless the shapes of q, k, v (rank 4) match."""
    pairs = (
        ("batch", (q.shape[0], k.shape[0], v.shape[0])),
        ("head size", (q.shape[3], k.shape[3])),
        ("heads of k and v", (k.shape[1], v.shape[1])),
        ("keys and values", (k.shape[2], v.shape[2])),
    )
    for name, sizes in pairs:
        for n in sizes[1:]:
            if n != sizes[0]:
                raise InferError(f"{context}: {name}, {sizes[0]} != {n}")


@op(
    "Attention",
    example=(
        "f32[1,2,3,4] f32[1,2,5,4] f32[1,2,5,6] f32[3,5] is_causal=1",
        "f32[2,3,8] f32[2,5,4] f32[2,5,4] q_num_heads=4 kv_num_heads=2 softcap=2.0",
    ),
    since=23,
    canonical=_attention_attrs,
)
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    nonpad_kv_seqlen: Tensor | None = None,
    *,
    is_causal: int = 0,
    kv_num_heads: int | None = None,
    left_window_size: int = -1,
    q_num_heads: int | None = None,
    qk_matmul_output_mode: int = 0,
    right_window_size: int = -1,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: DType | None = None,
) -> tuple[Tensor, ...]:
    """softmax(q k^T + bias) v, the keys and values with those of the past, and the scores.

    Each query sees the keys that `attn_mask` (False or -inf hides), `is_causal` and the window
    sizes allow; a query that sees none gives zeros.
    """
    what = f"Attention of q {q.type}, k {k.type}, v {v.type}"
    expect_kinds("Attention", "f", q, k, v)
    if not q.rank == k.rank == v.rank:
        raise InferError(f"{what}: ranks differ")
    if not q.dtype == k.dtype or not isinstance(softmax_precision, DType | None):
        raise InferError(f"{what}: dtypes, softmax in {softmax_precision}")
    if (past_key is None) != (past_value is None):
        raise InferError(f"{what}: past_key needs past_value, and the reverse")
    if past_key is not None and nonpad_kv_seqlen is not None:
        raise InferError(f"{what}: nonpad_kv_seqlen together with past_key")
    queries = split_heads(what, q, q_num_heads)
    new_keys, new_values = split_heads(what, k, kv_num_heads), split_heads(what, v, kv_num_heads)
    _check_shapes(what, queries, new_keys, new_values)
    for past, x in ((past_key, new_keys), (past_value, new_values)):
        if past is not None and (
            past.rank != 4 or (*past.shape[:2], past.shape[3]) != (*x.shape[:2], x.shape[3])
        ):
            raise InferError(f"{what}: past {past.type} of {x.type}")
    if attn_mask is not None and (attn_mask.dtype not in (BOOL, q.dtype) or not attn_mask.rank):
        raise InferError(f"{what}: a mask of {attn_mask.type}")
    if nonpad_kv_seqlen is not None and nonpad_kv_seqlen.shape != (queries.shape[0],):
        raise InferError(f"{what}: nonpad_kv_seqlen is {nonpad_kv_seqlen.type}")
    present_key, present_value = (
        _append_past(past_key, new_keys),
        _append_past(past_value, new_values),
    )
    grouped = group_heads(what, queries, present_key.shape[1])
    raw = attention_scores(grouped, present_key, default_scale(what, scale, queries))
    bias = mask_bias(
        what,
        q.dtype,
        (*queries.shape[:3], present_key.shape[2]),
        attn_mask,
        nonpad_kv_seqlen,
        0 if past_key is None else past_key.shape[2],
        bool(is_causal),
        left_window_size,
        right_window_size,
    )
    below = apply_softcap(raw, softcap)
    biased = below if bias is None else add_bias(below, bias)
    # Else each query sees the first key: only those behind its own place are hidden.
    some_see_none = attn_mask is not None or nonpad_kv_seqlen is not None or left_window_size >= 0
    hiding = bias if some_see_none else None
    seen = biased if nonpad_kv_seqlen is None else hide_padding(biased, nonpad_kv_seqlen)
    weights = attention_weights(seen, hiding, softmax_precision or q.dtype)
    y = join_groups(weighted_values(weights, present_value))
    shown = join_groups((raw, below, biased, weights)[qk_matmul_output_mode])
    return (join_heads(y) if q.rank == 3 else y), present_key, present_value, shown


def _flex_attention_attrs(types: Types, attrs: dict[str, Attr]) -> dict[str, Attr]:
    t, _ = known_type(types)
    if attrs["scale"] is not None:
        attrs = canonical_floats("scale")(types, attrs)
    return attrs | ({"softmax_precision": None} if attrs["softmax_precision"] == t.dtype else {})


@op(
    "FlexAttention",
    example="f32[1,4,3,4] f32[1,2,5,4] f32[1,2,5,6] scale=0.25",
    canonical=_flex_attention_attrs,
    domain="ai.onnx.preview",
)
def flex_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float | None = None,
    softmax_precision: DType | None = None,
) -> Tensor:
    """softmax(q k^T) v, without the subgraphs that may modify scores and probabilities."""
    what = f"FlexAttention of q {q.type}, k {k.type}, v {v.type}"
    expect_kinds("FlexAttention", "f", q, k, v)
    if not q.rank == k.rank == v.rank == 4 or not q.dtype == k.dtype == v.dtype:
        raise InferError(f"{what}: it takes four axes and one dtype")
    _check_shapes(what, q, k, v)
    raw = attention_scores(group_heads(what, q, k.shape[1]), k, default_scale(what, scale, q))
    weights = attention_weights(raw, None, softmax_precision or q.dtype)
    return join_groups(weighted_values(weights, v))
