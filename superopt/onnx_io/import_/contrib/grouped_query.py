"""GroupQueryAttention of com.microsoft, as ONNX Runtime computes it on a CPU.

The cache has the capacity of the past, or the total length if that is more. New keys and values are
written after the valid ones of each sequence; query s sees the keys up to its own position.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as oir

from superopt.ir import graph
from superopt.ir.op import InferError
from superopt.onnx_io.import_.contrib.build import (
    KnownSize,
    Operands,
    add,
    as_i64,
    attention_scale,
    attention_scores,
    head_count,
    hide,
    i64,
    join_heads,
    optional_operand,
    optional_pair,
    positions,
    reject_attributes,
    reject_operands,
    require_operands,
    shape_of,
    split_heads,
    static_size,
    unsqueeze,
)
from superopt.onnx_io.import_.ml.build import apply, float_attribute, integer_attribute, scalar_like
from superopt.ops import OPS
from superopt.ops.shared.sizes import max_size, subtract_sizes
from superopt.te.expr.tensor import Dim

UNSUPPORTED_OPERANDS = {
    12: "k_scale", 13: "v_scale", 14: "q_norm_weight", 15: "k_norm_weight", 16: "query_seqlens",
}  # fmt: skip
UNSUPPORTED_ATTRIBUTES = {
    "sliding_window_cache": 0, "causal": 1, "qk_output": 0, "k_quant_type": "NONE",
    "v_quant_type": "NONE",
}  # fmt: skip


def grouped_query_attention(
    n: oir.Node, operands: Operands, known: KnownSize
) -> Sequence[graph.Value]:
    """Return the attention and the caches with the new keys and values.

    Operands: query (perhaps with key and value), key, value, past_key, past_value, seqlens_k,
    total_sequence_length, cos_cache, sin_cache, position_ids, attention_bias, head_sink.
    """
    reject_operands(n, operands, UNSUPPORTED_OPERANDS)
    reject_attributes(n, UNSUPPORTED_ATTRIBUTES)
    heads, groups = head_count(n, "num_heads"), head_count(n, "kv_num_heads")
    if heads % groups:
        raise InferError(f"{heads} heads in {groups} groups")
    query, last_keys, total = require_operands(n, operands, 0, 5, 6)
    pair = optional_pair(n, operands, 1, "key and value")
    q, k, v = _split_qkv(query, pair, heads, groups)
    batch, _, length, size = shape_of(q, 4)
    if shape_of(last_keys, 1, 2) not in ((batch,), (batch, 1)):
        raise InferError(f"seqlens_k {last_keys.type} for {batch} sequences")
    valid = apply("Add", apply("Reshape", as_i64(last_keys), shape=(batch,)), i64(1))
    start = apply("Max", apply("Sub", valid, _length_value(query)), i64(0))
    places = apply("Add", unsqueeze(start, 1), positions(length))  # (batch, length)
    if integer_attribute(n, "do_rotary", 0):
        cos, sin = require_operands(n, operands, 7, 8)
        at = _rotary_positions(optional_operand(operands, 9), total, query, places)
        q, k = (_rotate(n, x, cos, sin, at) for x in (q, k))
    past = optional_pair(n, operands, 3, "past_key and past_value") or (None, None)
    capacity = _capacity(n, past[0], known(total))
    keys, values = (
        _update_cache(old, x, start, capacity) for old, x in zip(past, (k, v), strict=True)
    )
    scale = attention_scale(n, q)
    shape = (batch, groups, heads // groups, length, size)
    scores = attention_scores(apply("Reshape", q, shape=shape), unsqueeze(keys, 2), scale)
    softcap = float_attribute(n, "softcap", 0.0)
    if softcap > 0:
        c = scalar_like(softcap, scores)
        scores = apply("Mul", apply("Tanh", apply("Div", scores, c)), c)
    bias = optional_operand(operands, 10)
    if bias is not None:
        scores = add(scores, _grouped_bias(bias, heads, groups, capacity))
    window = integer_attribute(n, "local_window_size", -1)
    visible = _visible_keys(places, apply("Add", start, _length_value(query)), capacity, window)
    scores = hide(scores, unsqueeze(visible, 2), -math.inf)
    sink = optional_operand(operands, 11)
    if sink is None and integer_attribute(n, "smooth_softmax", 0) == 1:
        sink = scalar_like(0.0, scores)
    elif sink is not None:
        sink = apply("Reshape", sink, shape=(groups, heads // groups, 1, 1))
    weights = (
        apply("Softmax", scores, axis=-1) if sink is None else _softmax_with_sink(scores, sink)
    )
    y = apply("MatMul", weights, unsqueeze(values, 2))
    y = apply("Reshape", y, shape=(batch, heads, length, size))
    return join_heads(y), keys, values


def _split_qkv(
    query: graph.Value, pair: tuple[graph.Value, graph.Value] | None, heads: int, groups: int
) -> list[graph.Value]:
    """Return query, key and value as (batch, heads, length, size). pair: key and value, if the
    query does not contain them."""
    if pair is not None:
        parts: Sequence[graph.Value] = (query, *pair)
    else:
        hidden = static_size(shape_of(query, 3)[2], "the hidden size")
        size, rest = divmod(hidden, heads + 2 * groups)
        if rest:
            raise InferError(f"{hidden} elements in {heads + 2 * groups} heads")
        split = graph.node(
            OPS["Split"], [query], axis=2, split=(heads * size, groups * size, groups * size)
        )
        parts = graph.results(split)
    counts = heads, groups, groups
    return [split_heads(x, count) for x, count in zip(parts, counts, strict=True)]


def _length_value(query: graph.Value) -> graph.Value:
    """Return the number of queries of a sequence as i64[1]."""
    return apply("Shape", query, start=1, end=2)


def _rotary_positions(
    given: graph.Value | None, total: graph.Value, query: graph.Value, places: graph.Value
) -> graph.Value:
    """Return the positions of the rotation. In the first call only the first given one counts."""
    if given is None:
        return places
    batch, length = shape_of(places, 2)
    given = as_i64(given)
    if shape_of(given, 2) != (batch, length):
        raise InferError(f"position_ids {given.type}")
    first = apply("Slice", given, starts=(0, 0), ends=(1, 1), axes=(0, 1), steps=(1, 1))
    is_first = apply("Equal", apply("Reshape", as_i64(total), shape=(1,)), _length_value(query))
    return apply("Where", is_first, apply("Add", first, positions(length)), given)


def _rotate(
    n: oir.Node, x: graph.Value, cos: graph.Value, sin: graph.Value, at: graph.Value
) -> graph.Value:
    rotated = 2 * static_size(shape_of(cos, 2)[1], "the number of angles")
    interleaved = integer_attribute(n, "rotary_interleaved", 0)
    return apply(
        "RotaryEmbedding", x, cos, sin, at, interleaved=interleaved, rotary_embedding_dim=rotated
    )


def _capacity(n: oir.Node, past: graph.Value | None, total: Dim | None) -> Dim:
    """Return the length of the caches. Raises InferError if it is not known."""
    before: Dim = 0 if past is None else shape_of(past, 4)[2]
    if total is not None:
        return max_size(total, before)
    past_dim, present_dim = (_declared_length(v) for v in (n.inputs[3], *n.outputs[1:2]))
    if past is not None and past_dim is not None and past_dim == present_dim:
        return before
    raise InferError("total_sequence_length depends on data, and the caches' length on it")


def _declared_length(cache: oir.Value | None) -> int | str | None:
    """Return the length of a cache as the file declares it."""
    if cache is None or cache.shape is None or len(cache.shape) != 4:
        return None
    length = cache.shape[2]
    return length if isinstance(length, int) else length.value


def _update_cache(
    past: graph.Value | None, x: graph.Value, start: graph.Value, capacity: Dim
) -> graph.Value:
    """Return the cache with `x` written from `start[b]` on."""
    batch, groups, _, size = shape_of(x, 4)
    if past is None:
        return _extend(x, capacity)
    past = _extend(past, capacity)
    if past.type.shape != (batch, groups, capacity, size):
        raise InferError(f"a past {past.type} of {x.type}")
    return apply("TensorScatter", past, x, start, axis=2)


def _extend(x: graph.Value, capacity: Dim) -> graph.Value:
    """Return `x` with zeros behind it, up to the capacity."""
    length = shape_of(x, 4)[2]
    if length == capacity:
        return x
    return apply("Pad", x, pads=(0, 0, 0, 0, 0, 0, subtract_sizes(capacity, length), 0))


def _grouped_bias(bias: graph.Value, heads: int, groups: int, capacity: Dim) -> graph.Value:
    """Return the bias of the scores in groups of heads; keys behind its end are invisible."""
    batch, own, length, total = shape_of(bias, 4)
    if own not in (1, heads):
        raise InferError(f"attention_bias {bias.type} of {heads} heads")
    if total != capacity:
        bias = apply("Pad", bias, pads=(0, 0, 0, 0, 0, 0, 0, subtract_sizes(capacity, total)))
    shape = (batch, 1, 1) if own == 1 else (batch, groups, heads // groups)
    return apply("Reshape", bias, shape=(*shape, length, capacity))


def _visible_keys(places: graph.Value, end: graph.Value, capacity: Dim, window: int) -> graph.Value:
    """Return which keys the query at each place sees: (batch, 1, queries, keys). end: the number of
    keys of each sequence."""
    rows, columns = unsqueeze(places, 1, 3), positions(capacity)
    visible = apply("LessOrEqual", columns, rows)
    if window >= 0:
        near = apply("Less", apply("Sub", rows, i64(window)), columns)
        visible = apply("And", visible, near)
    return apply("And", visible, apply("Less", columns, unsqueeze(end, 1, 2, 3)))


def _softmax_with_sink(scores: graph.Value, sink: graph.Value) -> graph.Value:
    """Return the softmax of the scores and one more score, which has no value."""
    top = apply("Max", apply("ReduceMax", scores, axes=(4,), keepdims=1), sink)
    powers = apply("Exp", apply("Sub", scores, top))
    total = apply("ReduceSum", powers, axes=(4,), keepdims=1)
    return apply("Div", powers, apply("Add", total, apply("Exp", apply("Sub", sink, top))))
