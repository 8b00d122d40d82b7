"""What becomes a loop: recurrent layers of many steps, Scan and Loop nodes."""

from __future__ import annotations

from superopt.ir import graph as g
from superopt.ir.substitute import replace_all
from superopt.plan.recurrent_loop import recurrent_loop
from superopt.plan.scan import is_scan, scan_loop, why_no_loop


def looped(graph: g.Graph) -> g.Graph:
    """The graph with loop nodes in place of these."""
    while True:
        for n in g.nodes(graph):
            made = _loop(n)
            if made is not None:
                graph = replace_all(graph, dict(zip(g.results(n), made, strict=False)))
                break
        else:
            return graph


def _loop(n: g.Node) -> list[g.Value] | None:
    if is_scan(n) and not why_no_loop(n):
        return scan_loop(n)
    return recurrent_loop(n)
