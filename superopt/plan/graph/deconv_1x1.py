"""Lower transposed convolutions of a 1x1 image, with which generators and decoders begin, to a
matrix product whose columns are the kernel's elements.

As a windowed reduction most of its terms are zeros around that pixel: 48 of 49 for a 7 x 7 kernel.
"""

from __future__ import annotations

from math import prod

from superopt.ir import graph as ir_graph
from superopt.ir.substitute import replace_all
from superopt.ops import OPS


def lower_1x1_deconv(graph: ir_graph.Graph) -> ir_graph.Graph:
    """Return the graph with such convolutions lowered."""
    change: dict[ir_graph.Value, ir_graph.Value] = {}
    change |= {n: v for n in ir_graph.nodes(graph) if (v := _as_matmul(n)) is not None}
    return replace_all(graph, change) if change else graph


def _as_matmul(n: ir_graph.Node) -> ir_graph.Value | None:
    if n.op.name != "ConvTranspose" or n.op.domain or n.op.opaque:
        return None
    x, w, *more = n.inputs
    assert x is not None
    assert w is not None
    assert x.type.shape is not None
    assert w.type.shape is not None
    (batch, channels, *places), (_, *made) = x.type.shape, w.type.shape
    if not all(isinstance(d, int) for d in made):
        return None
    sums, *window = (d for d in made if isinstance(d, int))
    alone = all(d == 1 for d in places) and n.attr("group") == 1
    # A result of another shape is dilated or padded.
    if not alone or any(n.attr("pads")) or n.type.shape != (batch, sums, *window):  # type: ignore[arg-type]
        return None
    rows = ir_graph.node(OPS["Reshape"], [x], shape=(batch, channels))
    columns = ir_graph.node(OPS["Reshape"], [w], shape=(channels, sums * prod(window)))
    product = ir_graph.node(OPS["MatMul"], [rows, columns])
    out = ir_graph.node(OPS["Reshape"], [product], shape=(batch, sums, *window))
    if not more or more[0] is None:
        return out
    bias = ir_graph.node(OPS["Reshape"], [more[0]], shape=(sums, *(1 for _ in window)))
    return ir_graph.node(OPS["Add"], [out, bias])
