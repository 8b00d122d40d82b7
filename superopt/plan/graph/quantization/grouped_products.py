"""Grouped convolutions of integers as convolutions of one group, which have fast kernels.

    ConvInteger(x, w; group = g)  =>  Concat(ConvInteger(x[k], w[k]) for each group k)

and QLinearConv likewise. The result is the same, bit for bit.
"""

from __future__ import annotations

from superopt.ir import graph as ir_graph
from superopt.ir.constant_values import is_constant
from superopt.ir.substitute import replace_all
from superopt.ops import OPS

Value = ir_graph.Value
# The operands of the operators that have a value, or one for each channel of the result.
PER_CHANNEL_OPERANDS = {
    "ConvInteger": ("w", "w_zero_point"),
    "QLinearConv": ("w", "w_scale", "w_zero_point", "b"),
}
# Groups of 4 to 192 channels take 0.1 to 0.4 of the time of one general kernel (ConvInteger and
# QLinearConv on a Xeon with AMX), of 2 channels as long, and of one 8 to 20 times as long.
MIN_GROUP_CHANNELS = 3


def split_grouped_products(graph: ir_graph.Graph) -> ir_graph.Graph:
    """Return the graph with convolutions of integers split by their groups where that is faster."""
    change: dict[Value, Value] = {}
    for n in ir_graph.nodes(graph):
        made = _split_groups(n) if n.op.name in PER_CHANNEL_OPERANDS and not n.op.domain else None
        if made is not None:
            change[n] = made
    return replace_all(graph, change) if change else graph


def _split_groups(n: ir_graph.Node) -> Value | None:
    operands = dict(zip(n.op.inputs, n.inputs, strict=False))
    x, w, group = operands["x"], operands["w"], n.attr("group")
    assert x is not None
    assert w is not None
    assert isinstance(group, int)
    shape = w.type.shape or ()
    if group == 1 or len(shape) < 3 or not is_constant(w, {}):
        return None
    outer, inner = shape[:2]
    assert isinstance(outer, int)
    assert isinstance(inner, int)
    if inner < MIN_GROUP_CHANNELS:
        return None
    split = {"x": _split(x, 1, inner, group)}
    for name in PER_CHANNEL_OPERANDS[n.op.name]:
        value = operands.get(name)
        if value is not None and value.type.shape and value.type.shape[0] == outer:
            split[name] = _split(value, 0, outer // group, group)
    attrs = dict(n.attrs) | {"group": 1}
    parts = [
        ir_graph.node(
            n.op, [split[name][k] if name in split else v for name, v in operands.items()], **attrs
        )
        for k in range(group)
    ]
    return ir_graph.node(OPS["Concat"], parts, axis=1)


def _split(x: Value, axis: int, size: int, count: int) -> tuple[Value, ...]:
    return ir_graph.results(ir_graph.node(OPS["Split"], [x], axis=axis, split=(size,) * count))
