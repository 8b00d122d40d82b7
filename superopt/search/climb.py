"""Hill climbing: while any rewrite lowers the cost, apply all that do and do not overlap."""

from __future__ import annotations

from collections.abc import Callable

from superopt.cost.model import Costs
from superopt.ir import graph as g
from superopt.ir.substitute import Cycle
from superopt.rules.context import context
from superopt.search.book import Book
from superopt.search.move import Move, Refusals, Step, moves
from superopt.search.view import together

LEAST_US = 0.001  # a gain below this is rounding
NOISE = 0.02  # share of the time of the replaced nodes that a measured gain must exceed


def worth(move: Move, costs: Costs) -> bool:
    """True if the gain of `move` exceeds the noise of the measured costs.

    A rewrite that only removes nodes, or keeps their costs exactly, gains without measurement.
    """
    if move.effect.us >= -LEAST_US:
        return False
    replaced = sum(costs.of_nodes(move.effect.dead))
    created = sum(costs.of_nodes(move.effect.added))
    return created <= LEAST_US * 20 or -move.effect.us > NOISE * replaced


def climb(
    graph: g.Graph,
    rules: Book,
    costs: Costs,
    refusals: Refusals,
    *,
    stop: Callable[[], bool],
    note: Callable[[g.Graph, float], None] = lambda graph, cost: None,
    most: int = 200,
) -> tuple[g.Graph, list[Step], int]:
    """Return the graph at the local minimum, the steps to it, and how many rewrites were priced.

    `max_rounds` bounds the rounds; a round matches every rule everywhere.
    """
    steps: list[Step] = []
    priced = 0
    for _ in range(most):
        if stop():
            break
        ctx = context(graph)
        good: list[Move] = []
        for m in moves(ctx, rules, costs, refusals):
            priced += 1
            if worth(m, costs):
                good.append(m)
            else:
                refusals.note(m.rule.name, "cost", "", m.change, m.effect.us)
            if priced % 64 == 0 and stop():
                break
        if not good:
            break
        good.sort(key=lambda m: m.effect.us)
        chosen = _apart(good)
        graph, applied = _apply(graph, chosen)
        if not applied:
            break
        steps += applied
        note(graph, sum(s.us for s in applied))
    return graph, steps, priced


def _apart(good: list[Move]) -> list[Move]:
    """Return the best moves that touch no node twice."""
    taken: set[g.Node] = set()
    out: list[Move] = []
    for m in good:
        touched = set(m.match.nodes) | set(m.effect.dead)
        if touched & taken:
            continue
        taken |= touched
        out.append(m)
    return out


def _apply(graph: g.Graph, chosen: list[Move]) -> tuple[g.Graph, list[Step]]:
    """Apply all of `chosen` at once, or as many as possible if all would make a cycle."""
    try:
        after = together(graph, [m.change for m in chosen])
    except Cycle:
        return _one_by_one(graph, chosen)
    if after == graph:
        return graph, []
    return after, [Step(m.rule.name, None, m.change, m.effect.us, graph, after) for m in chosen]


def _one_by_one(graph: g.Graph, chosen: list[Move]) -> tuple[g.Graph, list[Step]]:
    """Apply as many of `chosen`, best first, as are acyclic together."""
    kept: list[Move] = []
    after = graph
    for m in chosen:
        try:
            after = together(graph, [k.change for k in (*kept, m)])
        except Cycle:
            continue
        kept.append(m)
    return after, [Step(m.rule.name, None, m.change, m.effect.us, graph, after) for m in kept]
