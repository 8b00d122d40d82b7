"""Limits of the values of integer inputs: where new keys are written into a cache, how many keys
are valid, which positions are rotated. A call with other values is refused before kernels run.

An operand is followed back to the input that it is computed from by adding sizes and constants, or
to an attention mask of which it is the sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from superopt.compilation.frontend.graph_ports import input_port
from superopt.compilation.frontend.input_arrays import InputPort, ValueLimit
from superopt.ir import graph as ir_graph
from superopt.onnx_io.import_.model import Model
from superopt.plan.graph.index_ranges import element_range, indexed_axes
from superopt.te.expr import index
from superopt.te.expr.node import Dim, Expr

MAX_CONSTANT_ELEMENTS = 64  # of a constant that is added
NONE_ALLOWED = -(1 << 63)  # a greatest value below all others
_UNCHANGED = frozenset({"Cast", "Reshape", "Unsqueeze", "Squeeze", "Identity", "Expand"})


@dataclass(frozen=True, slots=True)
class _Shifted:
    """The values of `source`, or their sums along an axis, plus numbers from `low` to `high`.
    is_clamped: negative ones are replaced by 0."""

    source: ir_graph.Input
    low: Expr
    high: Expr
    is_clamped: bool = False
    summed_axis: int | None = None


def model_ports(model: Model) -> tuple[InputPort, ...]:
    """Return the inputs of a model as users see them."""
    limits, defaults = input_limits(model.graph), model.input_defaults
    return tuple(input_port(i, i in defaults, limits.get(i, ())) for i in model.graph.inputs)


def input_limits(g: ir_graph.Graph) -> dict[ir_graph.Input, tuple[ValueLimit, ...]]:
    """Return the limits of the inputs' values."""
    out: dict[ir_graph.Input, dict[ValueLimit, None]] = {}
    for n in ir_graph.nodes(g):
        found = _LIMITS.get(n.op.name)
        for limit in found(n) if found is not None else ():
            x = _follow(limit.value)
            if x is not None:
                out.setdefault(x.source, {})[_input_limit(x, limit)] = None
    return {i: tuple(some) for i, some in out.items()}


def is_checked(positions: ir_graph.Value) -> bool:
    """True if values are checked before a call wherever an operator limits them."""
    return _follow(positions) is not None


def _input_limit(x: _Shifted, limit: _Limit) -> ValueLimit:
    """Return the limit of an input if shifted values have a limit."""
    least = "" if x.is_clamped else str(index.dim(index.as_index(limit.least) - x.low))
    if limit.most is None:
        return ValueLimit(least, "", limit.what, x.summed_axis)
    greatest = str(index.dim(index.as_index(limit.most) - x.high))
    if x.is_clamped:  # 0 must be allowed
        greatest = f"({greatest}) if ({limit.most}) >= 0 else {NONE_ALLOWED}"
    return ValueLimit(least, greatest, limit.what, x.summed_axis)


def _follow(v: ir_graph.Value | None) -> _Shifted | None:
    """Return the input that a value is computed from; None if by more than shifts."""
    if isinstance(v, ir_graph.Input):
        zero = index.as_index(0)
        is_integer = v.type.dtype is not None and v.type.dtype.is_int
        return _Shifted(v, zero, zero) if is_integer else None
    n = None if v is None else ir_graph.producer(v)
    if n is None:
        return None
    if n.op.name in _UNCHANGED:
        return _follow(n.inputs[0])
    if n.op.name == "ReduceSum":
        return _follow_sum(n)
    if n.op.name not in ("Add", "Sub", "Max") or len(n.inputs) != 2:
        return None
    x = _follow(n.inputs[0])
    span = element_range(n.inputs[1], max_bytes=8 * MAX_CONSTANT_ELEMENTS)
    if x is None or span is None or (x.is_clamped and n.op.name != "Add"):
        return None
    low, high = span
    if n.op.name == "Max":
        return replace(x, is_clamped=True) if index.dim(low) == index.dim(high) == 0 else None
    if n.op.name == "Sub":
        low, high = index.as_index(0) - high, index.as_index(0) - low
    if x.is_clamped and index.dim(low) != 0:
        return None
    return replace(x, low=index.as_index(x.low + low), high=index.as_index(x.high + high))


def _follow_sum(n: ir_graph.Node) -> _Shifted | None:
    """Return the input of which a value is the sum along an axis; None if it is another sum."""
    v, axes = n.inputs[0], n.attr("axes")
    x = _follow(v) if isinstance(v, ir_graph.Input) else None
    if x is None or not isinstance(axes, tuple) or len(axes) != 1 or not isinstance(axes[0], int):
        return None
    return replace(x, summed_axis=axes[0])


@dataclass(frozen=True, slots=True)
class _Limit:
    """An operand whose elements must be at least `least`, which is at most 0, and at most `most`;
    None: any. what: the reason, for messages."""

    value: ir_graph.Value | None
    most: Dim | None
    what: str
    least: Dim = 0


def _shape(n: ir_graph.Node, operand: int) -> tuple[Dim, ...]:
    v = n.inputs[operand] if operand < len(n.inputs) else None
    return () if v is None or v.type.shape is None else v.type.shape


def _tensor_scatter_limits(n: ir_graph.Node) -> Iterator[_Limit]:
    attrs = dict(n.attrs)
    axis = attrs["axis"]
    assert isinstance(axis, int)
    if len(n.inputs) > 2:
        room = index.as_index(_shape(n, 0)[axis]) - _shape(n, 1)[axis]
        most = index.dim(room) if attrs["mode"] == "linear" else None
        yield _Limit(n.inputs[2], most, "the cache has no room for what TensorScatter writes there")


def _attention_limits(n: ir_graph.Node) -> Iterator[_Limit]:
    keys = _shape(n, 1)
    if len(n.inputs) > 6 and keys:
        length = keys[2] if len(keys) == 4 else keys[1]
        yield _Limit(n.inputs[6], length, "Attention has fewer keys")


def _rotary_limits(n: ir_graph.Node) -> Iterator[_Limit]:
    if len(n.inputs) > 3:
        last = index.dim(index.as_index(_shape(n, 1)[0]) - 1)
        yield _Limit(n.inputs[3], last, "RotaryEmbedding has no angles for such positions")


def _scatter_limits(n: ir_graph.Node) -> Iterator[_Limit]:
    for axis in indexed_axes(n):
        if axis.column is None:
            yield _index_limit(axis.indices, axis.size, n.op.title)


def _index_limit(indices: ir_graph.Value | None, size: Dim, operator: str) -> _Limit:
    """Return the limit of indices along an axis of this size; negative ones count from its end."""
    end = index.as_index(size)
    least, most = index.dim(-end), index.dim(end - 1)
    return _Limit(indices, most, f"{operator} writes within an axis of size {size}", least)


_LIMITS: Mapping[str, Callable[[ir_graph.Node], Iterator[_Limit]]] = {
    "Attention": _attention_limits,
    "RotaryEmbedding": _rotary_limits,
    "ScatterElements": _scatter_limits,
    "ScatterND": _scatter_limits,
    "TensorScatter": _tensor_scatter_limits,
    # without a tensor expression, at symbolic sizes
    "ai.onnx::ScatterElements": _scatter_limits,
    "ai.onnx::ScatterND": _scatter_limits,
}
