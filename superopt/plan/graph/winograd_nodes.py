"""Which convolutions of a graph Winograd's algorithm is likely to compute."""

from __future__ import annotations

from superopt.ir import graph as ir_graph
from superopt.te.expr.dtype import F32

MIN_CHANNELS = 16  # of an input and a result, from which tiles fill vectors
KERNEL_SIZES = (3, 5)


def has_winograd_convolutions(graph: ir_graph.Graph) -> bool:
    """True if a convolution has a kernel and channels for which Winograd's algorithm pays on most
    machines."""
    return any(_is_suitable(n) for n in ir_graph.nodes(graph))


def _is_suitable(n: ir_graph.Node) -> bool:
    if (n.op.domain, n.op.name) != ("", "Conv") or n.attr("group") != 1:
        return False
    weights = n.inputs[1]
    if not isinstance(weights, ir_graph.Constant) or weights.type.dtype != F32:
        return False
    outer, inner, *kernel = (d if isinstance(d, int) else 0 for d in weights.type.shape or ())
    return min(outer, inner) >= MIN_CHANNELS and all(k in KERNEL_SIZES for k in kernel)
