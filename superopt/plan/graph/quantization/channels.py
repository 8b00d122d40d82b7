"""Sums of convolutions with more channels: a multiple of those that instructions compute at a time.

The epilogue of a convolution then computes whole vectors, and its result is stored with these
channels; who reads it reads its own. Weights of channels that nobody reads repeat the last one's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from superopt.ir import graph as ir_graph
from superopt.plan.graph.quantization.nodes import Value, make_node
from superopt.plan.graph.quantization.scaled_sums import ScaledSum
from superopt.te.expr.tensor import Dim

CHANNEL_MULTIPLE = 16
MIN_CHANNELS = 16  # with fewer, most of a vector would be for nobody


def pad_channels(
    total: ScaledSum, shape: Sequence[Dim], wide: Mapping[Value, Value]
) -> ScaledSum | None:
    """Return a sum of this shape with more channels; None if its channels are a multiple already,
    or if some term is neither a convolution nor such a result. wide: results with more channels."""
    channels = shape[1] if len(shape) > 2 else 0
    if not isinstance(channels, int) or channels < MIN_CHANNELS or not channels % CHANNEL_MULTIPLE:
        return None
    more = -channels % CHANNEL_MULTIPLE
    terms: list[tuple[Value, Value | None]] = []
    found = False
    for leaf, factor in total.terms:
        n = ir_graph.producer(leaf)
        x = None if n is None or n.op.name != "Cast" else n.inputs[0]
        before = None if x is None else ir_graph.producer(x)
        if n is None or x is None:
            return None
        if x in wide:
            padded, found = wide[x], True
        elif before is not None and before.op.name == "ConvInteger" and before.attr("group") == 1:
            padded, found = _pad_weights(before, channels, more), True
        else:
            return None
        scale = None if factor is None else _pad_constant(factor, len(shape), channels, more)
        terms.append((ir_graph.node(n.op, [padded], **dict(n.attrs)), scale))
    if not found:
        return None
    offset = total.offset
    offset = None if offset is None else _pad_constant(offset, len(shape), channels, more)
    return ScaledSum(tuple(terms), offset)


def _pad_weights(n: ir_graph.Node, channels: int, more: int) -> Value:
    inputs = list(n.inputs)
    for at in (1, 3):  # weights and their zero points
        v = inputs[at] if at < len(inputs) else None
        if v is not None and v.type.shape and v.type.shape[0] == channels:
            inputs[at] = _repeat_last(v, 0, more)
    return ir_graph.node(n.op, inputs, **dict(n.attrs))


def _pad_constant(v: Value, rank: int, channels: int, more: int) -> Value:
    axis = len(v.type.shape or ()) - rank + 1
    if axis < 0 or v.type.shape is None or v.type.shape[axis] != channels:
        return v
    return _repeat_last(v, axis, more)


def _repeat_last(v: Value, axis: int, more: int) -> Value:
    rank = len(v.type.shape or ())
    pads = (*(0,) * rank, *(more if d == axis else 0 for d in range(rank)))
    return make_node("Pad", [v], pads=pads, mode="edge")
