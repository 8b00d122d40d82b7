"""Lower nodes without an expression: long recurrent layers, Scan and Loop become loop nodes, large
scatters kernels of their own."""

from __future__ import annotations

from superopt.ir import graph as ir_graph
from superopt.ir.substitute import replace_all
from superopt.plan.graph.recurrent_loop import lower_to_loop
from superopt.plan.graph.scan_loop import (
    is_scan_or_loop,
    lower_scan_or_loop,
    unsupported_loop_reason,
)
from superopt.plan.graph.scatter_nodes import has_scatter_kernel, scatter_node


def lower_loops(graph: ir_graph.Graph, threads: int = 1) -> ir_graph.Graph:
    """Return the graph with loop nodes and scatter nodes in place of these."""
    while True:
        for n in ir_graph.nodes(graph):
            made = _replacement(n, threads)
            if made is not None:
                graph = replace_all(graph, dict(zip(ir_graph.results(n), made, strict=False)))
                break
        else:
            return graph


def _replacement(n: ir_graph.Node, threads: int) -> list[ir_graph.Value] | None:
    if is_scan_or_loop(n) and not unsupported_loop_reason(n):
        return lower_scan_or_loop(n)
    if has_scatter_kernel(n):
        return scatter_node(n)
    return lower_to_loop(n, threads)
