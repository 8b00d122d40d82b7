"""Novelty of a rewrite: how often the view of its rarest new node was visited before.

Most rewrites cost nothing: a search by cost alone visits thousands of equivalent orders before a
graph that costs slightly more on the way to a better one. So graphs with a novel node come first
(width-based search: Lipovetzky and Geffner, "Best-first width search", AAAI 2017, with nodes as
atoms). The view of a node is its operator, attributes and types, and the operators of its operands,
since deeper nodes do not change what matches.
"""

from __future__ import annotations

from collections import Counter

from superopt.cost.model import Costs
from superopt.ir import graph as g
from superopt.search.view import Delta

View = tuple[object, ...]


def views(effect: Delta, costs: Costs) -> tuple[View, ...]:
    """Return the views of the nodes that a rewrite makes, without constant ones."""
    return tuple(_view(n) for n in effect.added if not costs.is_constant(n))


def novelty(made: tuple[View, ...], times: Counter[View]) -> int:
    """Return how often the rarest of `made` was visited; 0 if the rewrite only removes nodes."""
    return min((times[v] for v in made), default=0)


def _view(n: g.Node) -> View:
    return (n.op, n.attrs, n.types, *(_given(v) for v in n.inputs))


def _given(v: g.Value | None) -> object:
    match v:
        case g.Node(op, _, _, types):
            return (op, types)
        case g.Item(n, i):
            return (n.op, n.types, i)
        case _:
            return v
