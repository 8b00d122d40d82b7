"""Novelty of a rewrite: how often the view of its rarest new node was visited before.

Most rewrites cost nothing: a search by cost alone visits thousands of equivalent orders before a
graph that costs slightly more on the way to a better one. So graphs with a novel node come first
(width-based search: Lipovetzky and Geffner, "Best-first width search", AAAI 2017, with nodes as
atoms). The view of a node is its operator, attributes and types, and the operators of its operands,
since deeper nodes do not change what matches.
"""

from __future__ import annotations

from collections import Counter

from superopt.cost.graph_cost import GraphCosts
from superopt.ir import graph
from superopt.search.cost_delta import Delta

NodeView = tuple[object, ...]


def node_views(effect: Delta, costs: GraphCosts) -> tuple[NodeView, ...]:
    """Return the views of the nodes that a rewrite makes, without constant ones."""
    return tuple(_node_view(n) for n in effect.added if not costs.is_constant(n))


def novelty(made: tuple[NodeView, ...], visit_counts: Counter[NodeView]) -> int:
    """Return how often the rarest of `made` was visited; 0 if the rewrite only removes nodes."""
    return min((visit_counts[v] for v in made), default=0)


def _node_view(n: graph.Node) -> NodeView:
    return (n.op, n.attrs, n.types, *(_operand_view(v) for v in n.inputs))


def _operand_view(v: graph.Value | None) -> object:
    match v:
        case graph.Node(op, _, _, types):
            return (op, types)
        case graph.Item(n, i):
            return (n.op, n.types, i)
        case _:
            return v
