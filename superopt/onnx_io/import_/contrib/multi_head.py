"""MultiHeadAttention of com.microsoft, as ONNX Runtime computes it on a CPU."""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes
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
    reject_operands,
    require_operands,
    shape_of,
    split_heads,
    static_size,
    unsqueeze,
)
from superopt.onnx_io.import_.ml.build import apply, float_attribute, integer_attribute, scalar_like
from superopt.ops import OPS
from superopt.te.expr.dtype import to_numpy
from superopt.te.expr.tensor import Dim

MASK_FILTER_VALUE = -10000.0  # ONNX Runtime's default


def multi_head_attention(
    n: oir.Node, operands: Operands, known: KnownSize
) -> Sequence[graph.Value]:
    """softmax(q k^T + masks) v, the keys and values with those of the past.

    Operands: query, key, value, bias, key_padding_mask, attention_bias, past_key, past_value.
    """
    reject_operands(n, operands, {8: "past_sequence_length", 9: "cache_indirection"})
    query, key, value = require_operands(n, operands, 0, 1, 2)
    heads = head_count(n, "num_heads")
    bias, mask, scores_bias = (optional_operand(operands, k) for k in (3, 4, 5))
    past = optional_pair(n, operands, 6, "past_key and past_value")
    if bias is not None and len(shape_of(key, 3, 4)) == 4:
        raise InferError("MultiHeadAttention with a bias of keys in heads")
    q, new_keys, new_values = _split_operands(query, key, value, bias, heads)
    keys, values = new_keys, new_values
    if past is not None:
        keys, values = (apply("Concat", *x, axis=2) for x in zip(past, (keys, values), strict=True))
    scores = attention_scores(q, keys, attention_scale(n, q))
    queries, total = shape_of(scores, 4)[2:]
    if mask is not None:
        least = float_attribute(n, "mask_filter_value", MASK_FILTER_VALUE)
        seen = visible_keys(mask, shape_of(scores, 4)[0], total)
        filtered = apply("Where", seen, scalar_like(0.0, scores), scalar_like(least, scores))
        scores = add(scores, filtered)
    if scores_bias is not None:
        shape_of(scores_bias, 4)
        scores = add(scores, scores_bias)
    if integer_attribute(n, "unidirectional", 0) and queries != 1:
        if shape_of(new_keys, 4)[2] != queries:  # one query sees all keys, several do not
            raise InferError("MultiHeadAttention of one direction over other keys")
        before = 0 if past is None else shape_of(past[0], 4)[2]
        scores = hide(scores, causal_mask(queries, total, before), least_finite(scores))
    weights = apply("Softmax", scores, axis=-1)
    return join_heads(apply("MatMul", weights, values)), keys, values, scores


def least_finite(x: graph.Value) -> float:
    """Return the least finite value of the element type."""
    dtype = x.type.dtype
    if dtype is None or not dtype.is_float:
        raise InferError(f"scores of {x.type}")
    return float(ml_dtypes.finfo(to_numpy(dtype)).min)  # type: ignore[no-untyped-call]


def _split_operands(
    query: graph.Value, key: graph.Value, value: graph.Value, bias: graph.Value | None, heads: int
) -> list[graph.Value]:
    """Return the operands in heads, with their parts of the bias added."""
    operands = query, key, value
    parts: list[graph.Value | None] = [None] * 3
    if bias is not None:
        sizes = tuple(static_size(shape_of(x, 3)[2], "the hidden size") for x in operands)
        parts = list(graph.results(graph.node(OPS["Split"], [bias], axis=0, split=sizes)))
    shape_of(query, 3)
    return [
        x if len(shape_of(x, 3, 4)) == 4 else split_heads(add(x, part), heads)
        for x, part in zip(operands, parts, strict=True)
    ]


def visible_keys(mask: graph.Value, batch: Dim, total: Dim) -> graph.Value:
    """Return where keys are visible, in four axes.

    mask: (batch) numbers of keys, or positive where a key is visible: (batch, keys) or (batch,
    queries, keys).
    """
    shape, values = shape_of(mask, 1, 2, 3), as_i64(mask)
    if isinstance(shape[0], int) and isinstance(batch, int) and shape[0] != batch:
        raise InferError(f"a mask {mask.type} of {batch} sequences")
    if len(shape) == 1:
        return apply("Less", positions(total), unsqueeze(values, 1, 2, 3))
    return unsqueeze(apply("Greater", values, i64(0)), *((1, 2) if len(shape) == 2 else (1,)))


def causal_mask(queries: Dim, total: Dim, before: Dim) -> graph.Value:
    """Return where keys are not behind their query, which follows `before` keys."""
    rows = unsqueeze(positions(queries, before), 1)
    return apply("LessOrEqual", positions(total), rows)
