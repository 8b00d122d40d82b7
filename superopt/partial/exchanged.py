"""Axes of which each place is what another one is, of other names for what is given.

    y[c] = x[c] + sum(w[c, k] * x[k], k)

Nothing moves along c here, since x is read at c and at all of its places. But let two places change
names, in x and in both dims of w: the sum stays, and one element becomes the other. So two programs
are equal at both places of c, or at none. That holds of an axis if what is an index with it, and
with what these are indices with, is an index and nothing else, over the whole of a dim, and if no
other axis of the result is among them (a transpose reads x[i, j] and x[j, i]).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import networkx as nx

from superopt.te.dtype import INDEX
from superopt.te.expr import Tensor
from superopt.te.node import Axis, Expr, Load
from superopt.te.walk import axes_of, operands

Dim = tuple[Tensor, int]


def exchanged(axes: Sequence[Axis], bodies: Sequence[Expr]) -> list[bool]:
    """Which axes of the result are such, in all of these programs."""
    joined: nx.Graph[Axis | Dim] = nx.Graph()
    joined.add_nodes_from(axes)
    bad = set[Axis | Dim]()
    for of, e in _indices(bodies):
        if of is not None and isinstance(e, Axis):
            joined.add_edge(of, e)
            bad |= {e} if e.extent != of[0].shape[of[1]] else set()
        else:
            bad |= axes_of(e) | ({of} if of is not None else set())
    told: dict[Axis, bool] = {}
    for some in nx.connected_components(joined):
        own = [a for a in axes if a in some]
        told |= dict.fromkeys(own, len(own) == 1 and bad.isdisjoint(some))
    return [told[a] for a in axes]


def _indices(bodies: Sequence[Expr]) -> Iterator[tuple[Dim | None, Expr]]:
    """What is read by which, and what else is computed with indices."""
    stack, seen = list(bodies), set[int]()
    while stack:
        e = stack.pop()
        if id(e) in seen:
            continue
        seen.add(id(e))
        if isinstance(e, Load):
            assert e.tensor.body is None, e
            yield from (((e.tensor, d), i) for d, i in enumerate(e.index))
            stack += [i for i in e.index if not isinstance(i, Axis)]
        else:
            stack += operands(e)
            if e.dtype == INDEX:
                yield None, e
