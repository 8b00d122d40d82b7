"""Find the nodes of a segment that have no kernel by planning each one alone."""

from __future__ import annotations

from collections.abc import Callable

from superopt.ir import graph
from superopt.plan.graph.partition import NO_KERNEL_ERRORS, Segment


def unsupported_nodes(s: Segment, plan: Callable[[Segment], object]) -> dict[graph.Node, str]:
    """Return the nodes of a segment that no kernel computes, with the reasons. plan: plans a
    segment and raises one of NO_KERNEL_ERRORS if it cannot."""
    out = {}
    for n in s.nodes:
        try:
            plan(single_node_segment(n))
        except NO_KERNEL_ERRORS as e:
            out[n] = str(e)
    return out


def single_node_segment(n: graph.Node) -> Segment:
    """Return the segment of one node."""
    inputs = tuple(v for v in n.inputs if v is not None and not isinstance(v, graph.Constant))
    return Segment((n,), True, tuple(dict.fromkeys(inputs)), graph.results(n))
