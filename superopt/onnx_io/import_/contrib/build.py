"""Nodes that several expansions of contrib operators need: heads, positions, products, masks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import onnx_ir as oir

from superopt.ir import graph
from superopt.ir.op import InferError
from superopt.onnx_io.import_.ml.build import (
    apply,
    cast,
    constant,
    float_attribute,
    integer_attribute,
    scalar_like,
)
from superopt.te.expr import index
from superopt.te.expr.dtype import I64
from superopt.te.expr.tensor import Dim

Operands = Sequence[graph.Value | None]
# The value of a tensor of one integer, where it is known as a size.
KnownSize = Callable[[graph.Value], Dim | None]
ExpandNode = Callable[[oir.Node, Operands, KnownSize], Sequence[graph.Value]]


def shape_of(x: graph.Value, *ranks: int) -> tuple[Dim, ...]:
    """Return the shape. Raises InferError unless it is known and has one of the ranks."""
    shape = x.type.shape
    if shape is None or len(shape) not in ranks:
        raise InferError(f"an operand {x.type}, not of {' or '.join(map(str, ranks))} axes")
    return shape


def require_operands(n: oir.Node, operands: Operands, *positions: int) -> list[graph.Value]:
    """Return the operands at the positions. Raises InferError if one is absent."""
    found = [operands[k] if k < len(operands) else None for k in positions]
    if any(v is None for v in found):
        raise InferError(f"{n.op_type} without its operands {', '.join(map(str, positions))}")
    return [v for v in found if v is not None]


def optional_operand(operands: Operands, position: int) -> graph.Value | None:
    return operands[position] if position < len(operands) else None


def optional_pair(
    n: oir.Node, operands: Operands, first: int, names: str
) -> tuple[graph.Value, graph.Value] | None:
    """Return two operands, at a position and after it; None if both are absent. names: theirs.
    Raises InferError if only one is given."""
    a, b = (optional_operand(operands, k) for k in (first, first + 1))
    if a is not None and b is not None:
        return a, b
    if a is not None or b is not None:
        raise InferError(f"{n.op_type} with one of {names}")
    return None


def reject_operands(n: oir.Node, operands: Operands, names: Mapping[int, str]) -> None:
    """Raise InferError if an operand at one of the positions is given."""
    for k, name in names.items():
        if optional_operand(operands, k) is not None:
            raise InferError(f"{n.op_type} with {name}")


def reject_attributes(n: oir.Node, defaults: Mapping[str, object]) -> None:
    """Raise InferError if an attribute has another value than its default."""
    for name, default in defaults.items():
        found = n.attributes.get(name)
        if found is not None and found.value != default:
            raise InferError(f"{n.op_type} with {name} {found.value}")


def head_count(n: oir.Node, name: str) -> int:
    """Return an attribute that is a number of heads. Raises InferError if it is below 1."""
    heads = integer_attribute(n, name, 0)
    if heads < 1:
        raise InferError(f"{n.op_type} with {name} {heads}")
    return heads


def static_size(d: Dim, what: str) -> int:
    if not isinstance(d, int):
        raise InferError(f"{what} is {d}, which is not known")
    return d


def split_heads(x: graph.Value, heads: int) -> graph.Value:
    """(batch, length, heads * size) as (batch, heads, length, size)."""
    batch, length, hidden = shape_of(x, 3)
    size, rest = divmod(static_size(hidden, "the hidden size"), heads)
    if rest:
        raise InferError(f"{hidden} elements in {heads} heads")
    return apply(
        "Transpose", apply("Reshape", x, shape=(batch, length, heads, size)), perm=(0, 2, 1, 3)
    )


def join_heads(x: graph.Value) -> graph.Value:
    """(batch, heads, length, size) as (batch, length, heads * size)."""
    batch, heads, length, size = shape_of(x, 4)
    hidden = index.dim(index.as_index(heads) * size)
    turned = apply("Transpose", x, perm=(0, 2, 1, 3))
    return apply("Reshape", turned, shape=(batch, length, hidden))


def positions(count: Dim, start: Dim = 0) -> graph.Value:
    """Return start, start + 1, ..., start + count - 1 as i64."""
    limit = index.dim(index.as_index(start) + count)
    return apply("Range", start=start, limit=limit, delta=1, dtype=I64)


def add(*values: graph.Value | None) -> graph.Value:
    """Return the sum of the values that are given."""
    first, *rest = (v for v in values if v is not None)
    for v in rest:
        first = apply("Add", first, v)
    return first


def scale_by(x: graph.Value, factor: float) -> graph.Value:
    return apply("Mul", x, scalar_like(factor, x))


def attention_scale(n: oir.Node, q: graph.Value) -> float:
    """Return the factor of the scores of queries in heads: an attribute, or one for their size."""
    size = static_size(shape_of(q, 4)[3], "the head size")
    return float_attribute(n, "scale", 0.0) or 1 / math.sqrt(size)


def attention_scores(q: graph.Value, k: graph.Value, scale: float) -> graph.Value:
    """Return scale * q k^T along the last two axes."""
    rank = len(shape_of(k, 4, 5))
    turned = apply("Transpose", k, perm=(*range(rank - 2), rank - 1, rank - 2))
    return scale_by(apply("MatMul", q, turned), scale)


def hide(scores: graph.Value, visible: graph.Value, hidden: float) -> graph.Value:
    """Return the scores where keys are visible, else `hidden`."""
    return apply("Where", visible, scores, scalar_like(hidden, scores))


def unsqueeze(x: graph.Value, *axes: int) -> graph.Value:
    return apply("Unsqueeze", x, axes=axes)


def as_i64(x: graph.Value) -> graph.Value:
    return cast(x, I64)


def i64(value: object) -> graph.Value:
    return constant(value, I64)
