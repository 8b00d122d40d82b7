"""DequantizeLinear behind data movement, where products and quantization find it.

    Transpose(DequantizeLinear(q, s, z))                     => DequantizeLinear(Transpose(q), s, z)
    Concat(DequantizeLinear(q, s, z), DequantizeLinear(p, s, z))
                                                    => DequantizeLinear(Concat(q, p), s, z)

and likewise for what selects or repeats elements, and for MaxPool: dequantizing keeps the order.
The result is the same, bit for bit. A QuantizeLinear of the same scale behind it then cancels
(requantize.py), so that only bytes are moved.
"""

from __future__ import annotations

from dataclasses import replace

from superopt.ir import graph as ir_graph
from superopt.ir.substitute import replace_all
from superopt.plan.graph.quantization.nodes import (
    Quantized,
    Value,
    constant_number,
    make_node,
    match_dequantized,
)

# Operators whose first operand is data, and whose others are not.
MOVEMENT_OPS = frozenset((
    "Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Expand", "Tile",
    "Slice", "Split", "Gather", "GatherElements", "GatherND", "DepthToSpace", "SpaceToDepth",
))  # fmt: skip


def move_dequantization(graph: ir_graph.Graph) -> ir_graph.Graph:
    """Return the graph with dequantization as above."""
    moved: dict[Value, Quantized] = {}
    change: dict[Value, Value] = {}
    for n in ir_graph.nodes(graph):
        inputs = [moved.get(v) or match_dequantized(v) if v is not None else None for v in n.inputs]
        after = _move_behind(n, inputs)
        for old, new in zip(ir_graph.results(n), after, strict=False):
            moved[old] = new
            change[old] = _dequantize(new)
    return replace_all(graph, change) if change else graph


def _move_behind(n: ir_graph.Node, inputs: list[Quantized | None]) -> list[Quantized]:
    """Return what the results of a node dequantize; none if it computes something else."""
    first = inputs[0] if inputs else None
    if n.op.domain or first is None:
        return []
    attrs = dict(n.attrs)
    if n.op.name == "Concat":
        others = [v for v in inputs if v is not None and _is_alike(v, first)]
        if len(others) < len(n.inputs):
            return []
        return [replace(first, x=ir_graph.node(n.op, [v.x for v in others], **attrs))]
    axis = first.axis
    if axis is not None and n.op.name == "Transpose":
        perm = n.attr("perm")
        assert isinstance(perm, tuple)
        axis = perm.index(axis)
    elif axis is not None or not (n.op.name in MOVEMENT_OPS or _keeps_order(n, first)):
        return []
    new = ir_graph.node(n.op, [first.x, *n.inputs[1:]], **attrs)
    return [replace(first, x=x, axis=axis) for x in ir_graph.results(new)]


def _keeps_order(n: ir_graph.Node, data: Quantized) -> bool:
    """True for operators that select an element of each window, or the nearest one."""
    if n.op.name == "Resize":
        return n.attr("mode") == "nearest" and n.attr("coordinate_transformation_mode") not in (
            "tf_crop_and_resize",
        )
    scale = constant_number(data.scale)
    return n.op.name == "MaxPool" and len(n.types) == 1 and scale is not None and scale > 0


def _is_alike(v: Quantized, other: Quantized) -> bool:
    """True if values of one type have one scale and zero point."""
    if v.axis is not None or other.axis is not None or v.x.type.dtype != other.x.type.dtype:
        return False
    numbers = [constant_number(x.scale) for x in (v, other)]
    zeros = [0.0 if x.zero is None else constant_number(x.zero) for x in (v, other)]
    return None not in (*numbers, *zeros) and numbers[0] == numbers[1] and zeros[0] == zeros[1]


def _dequantize(v: Quantized) -> Value:
    attrs = {} if v.axis is None else {"axis": v.axis}
    return make_node("DequantizeLinear", [v.x, v.scale, v.zero], **attrs)
