"""Nodes, attributes and constants of right sides."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache

import numpy as np

from superopt.ir.graph import Constant, Input, Item, Node, Value, constant, intern_node
from superopt.ir.op import Attr, Attrs, InferError, Op, Types, canonical_attrs, infer
from superopt.rules.lang.fills import (
    ARRAY_FILLS,
    Content,
    fill_array,
    shape_and_content,
    table_array,
)
from superopt.rules.lang.functions import NotKnown, Result, as_integer, show_result
from superopt.rules.lang.value_facts import round_to
from superopt.te.expr.dtype import DType, to_numpy
from superopt.te.expr.tensor import TensorType

# Variadic operators that nest: Concat(Concat(x, y), z) = Concat(x, y, z). Not Mean: the mean of a
# mean and a third is not the mean of three.
NARY_OPS = frozenset(("Concat", "Sum", "Max", "Min"))
MAX_CONSTANT_BYTES = 1 << 22  # bytes of a constant that a rule makes


class Unsafe(Exception):
    """A right side must not be built; the message says why."""


def as_attribute(r: Result) -> Attr:
    """Return a formula's value as an attribute; raises NotKnown if it is none."""
    if type(r) is int:
        return r
    match r:
        case Fraction():
            return float(r)
        case Input() | Constant() | Node() | Item():
            raise NotKnown(f"{show_result(r)} is not an attribute")
        case tuple():
            return tuple([as_attribute(v) for v in r])
        case _:
            return r


@lru_cache(maxsize=1 << 16)
def _resolve(
    op: Op, types: Types, attrs: tuple[tuple[str, Attr], ...]
) -> tuple[Attrs, tuple[TensorType, ...]]:
    """Return canonical attributes and result types. Cached: a search repeats the same calls."""
    full = canonical_attrs(op, types, dict(attrs))
    return full, infer(op, types, full)


def make_node(op: Op, values: Sequence[Value | None], attrs: dict[str, Attr]) -> Node:
    """Return the node of `op`; nested n-ary operators are flattened.

    Of a Sum only the first operand is flattened: sums run from the left, and stay bit-exact.
    """
    args = tuple(values)
    while args and args[-1] is None:
        args = args[:-1]
    given = tuple(attrs.items())
    full, types = _resolve(op, tuple([None if v is None else v.type for v in args]), given)
    if op.name in NARY_OPS and any(type(v) is Node and v.op is op for v in args):
        flat: list[Value | None] = []
        for k, v in enumerate(args):
            nested = type(v) is Node and v.op is op and v.attrs == full
            if nested and (op.name != "Sum" or k == 0):
                flat.extend(v.inputs)  # type: ignore[union-attr]
            else:
                flat.append(v)
        args = tuple(flat)
        types = infer(op, tuple([None if v is None else v.type for v in args]), full)
    return intern_node(op, args, full, types)


def flatten_operands(n: Node, inputs: tuple[Value | None, ...]) -> tuple[Value | None, ...]:
    """Return the operands of `n` on `inputs`, with nested n-ary operators flattened.

    Opaque nodes keep their operands, and so do nodes whose flattened operands have sizes that are
    not known to fit.
    """
    if n.op.opaque or n.op.name not in NARY_OPS:
        return inputs
    try:
        return make_node(n.op, inputs, dict(n.attrs)).inputs
    except InferError:
        return inputs


@lru_cache(maxsize=1 << 12)
def scalar_constant(value: int | float | Fraction, dtype: DType) -> Constant:
    """Return a scalar constant; raises NotKnown if `dtype` cannot represent the number."""
    stored = round_to(value, dtype)
    if stored is None:
        raise NotKnown(f"{value} is no {dtype}")
    return constant(np.array(stored, to_numpy(dtype)))


def fill_constant(kind: str, args: Sequence[Result], dtype: DType) -> Value:
    """Return the constant of a fill: zeros, ones, full, eye... of `dtype` or of the last
    argument."""
    last = args[-1]
    if isinstance(last, DType):
        args, dtype = args[:-1], last
    dims, content = shape_and_content(kind, args)
    return _fill_constant(kind, tuple([as_integer(d) for d in dims]), content, dtype)


@lru_cache(maxsize=1 << 6)
def _fill_constant(kind: str, shape: tuple[int, ...], content: Content, dtype: DType) -> Constant:
    size = int(np.prod(shape, dtype=np.float64)) * to_numpy(dtype).itemsize
    if size > MAX_CONSTANT_BYTES:
        raise Unsafe(f"{kind} of shape {shape} is {size:,} bytes, more than {MAX_CONSTANT_BYTES:,}")
    if min(shape, default=0) < 0:
        raise NotKnown(f"{kind} of shape {shape}")
    if kind in ARRAY_FILLS:
        return constant(fill_array(kind, shape, dtype))
    if isinstance(content, tuple):
        return constant(table_array(content, dtype))
    stored = round_to(content, dtype)
    if stored is None:
        raise NotKnown(f"{content} is no {dtype}")
    return constant(np.full(shape, stored, to_numpy(dtype)))
