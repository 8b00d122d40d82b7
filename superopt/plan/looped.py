"""Lower nodes without an expression: long recurrent layers, Scan and Loop become loop nodes, large
scatters kernels of their own."""

from __future__ import annotations

from superopt.ir import graph as g
from superopt.ir.substitute import replace_all
from superopt.plan.recurrent_loop import recurrent_loop
from superopt.plan.scan import is_scan, scan_loop, why_no_loop
from superopt.plan.scatters import has_kernel, scatter_node


def looped(graph: g.Graph, threads: int = 1) -> g.Graph:
    """Return the graph with loop nodes and scatter nodes in place of these."""
    while True:
        for n in g.nodes(graph):
            made = _replacement(n, threads)
            if made is not None:
                graph = replace_all(graph, dict(zip(g.results(n), made, strict=False)))
                break
        else:
            return graph


def _replacement(n: g.Node, threads: int) -> list[g.Value] | None:
    if is_scan(n) and not why_no_loop(n):
        return scan_loop(n)
    if has_kernel(n):
        return scatter_node(n)
    return recurrent_loop(n, threads)
