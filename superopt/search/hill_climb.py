"""Hill climbing: while any rewrite lowers the cost, apply all that do and do not overlap."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

from superopt.cost.graph_cost import GraphCosts
from superopt.ir import graph as ir_graph
from superopt.ir.substitute import ReplacementCycle, substitute_values
from superopt.rules.match.graph_context import GraphContext, graph_context
from superopt.search.cost_delta import Delta, apply_together
from superopt.search.move import Move, Refusals, RewriteCache, Step, find_moves, measured_move
from superopt.search.rule_set import RuleSet

MAX_TRIED_MOVES = 48  # that gain, by plans; then they are applied before others are priced
MAX_REWRITE_DEPTH = 4  # nodes that a rewrite made, from its result on
MAX_HALVINGS = 2  # of moves that do not shorten a run together
MIN_GAIN_US = 0.001  # a gain below this is rounding
NOISE_SHARE = 0.02  # share of the time of the replaced nodes that a measured gain must exceed


def is_worthwhile(effect: Delta) -> bool:
    """True if the gain of a rewrite exceeds the noise of the measured costs.

    A rewrite that only removes nodes, or keeps their costs exactly, gains without measurement.
    """
    if effect.us >= -MIN_GAIN_US:
        return False
    cost = effect.cost
    return cost.added_us <= MIN_GAIN_US * 20 or -effect.us > NOISE_SHARE * cost.removed_us


def hill_climb(
    graph: ir_graph.Graph,
    rules: RuleSet,
    costs: GraphCosts,
    refusals: Refusals,
    *,
    stop: Callable[[], bool],
    note: Callable[[ir_graph.Graph, float], None] = lambda graph, cost: None,
    max_rounds: int = 200,
) -> tuple[ir_graph.Graph, list[Step], int]:
    """Return the graph at the local minimum, the steps to it, and how many rewrites were priced.

    `max_rounds` bounds the rounds. A round matches every rule near what the one before rewrote; if
    nothing gains there, or the one before left rewrites unpriced, everywhere.
    """
    steps: list[Step] = []
    priced = 0
    slower: set[object] = set()  # rewrites that gain by themselves, but not in a run
    near: Collection[ir_graph.Node] | None = None
    known: RewriteCache = {}
    for _ in range(max_rounds):
        if stop():
            break
        ctx = graph_context(graph)
        good: list[Move] = []
        is_complete = True
        for m in find_moves(ctx, rules, costs, refusals, near, known):
            priced += 1
            if is_worthwhile(m.effect):
                if _identity(m) not in slower:
                    good.append(m)
            else:
                refusals.record(m.rule.name, "cost", "", m.change, m.effect.us)
            if (costs.has_plans or priced % 8 == 0) and stop():  # a plan may take a second
                break
            if costs.has_plans and len(good) >= MAX_TRIED_MOVES:
                is_complete = False
                break
        if not good and near is None:
            break
        if not good:
            near = None
            continue
        good.sort(key=lambda m: m.effect.us)
        wanted = _disjoint_moves(good)
        chosen = [m for m in map(partial(measured_move, ctx, costs), wanted) if m is not None]
        chosen = [m for m in chosen if is_worthwhile(m.effect)]
        if costs.has_streams:
            kept = _faster_moves(ctx, chosen, costs, stop)
            slower.update({*map(_identity, chosen)} - {*map(_identity, kept)})
            if chosen and not kept and not stop():
                continue
            chosen = kept
        elif wanted and not chosen:  # their measured costs count in the next round
            continue
        graph, applied = _apply(graph, chosen)
        if not applied:
            break
        near = _rewritten_nodes(ctx, applied) if is_complete else None
        steps += applied
        note(graph, sum(s.us for s in applied))
    return graph, steps, priced


def _rewritten_nodes(ctx: GraphContext, applied: list[Step]) -> set[ir_graph.Node]:
    """Return the nodes that rewrites made, in the graph after all of them, and their readers."""
    change = {old: new for s in applied for old, new in s.change.items()}
    after, now = substitute_values(ctx.graph, change)
    new = graph_context(after)
    found: set[ir_graph.Node] = set()
    for value in (now[old] for old in change if old in now):
        found.update(new.users.get(value, ()))
        pending = [(ir_graph.producer(value), 0)]
        while pending:
            n, depth = pending.pop()
            if n is None or n in found or n not in new.position or n in ctx.position:
                continue
            found.add(n)
            if depth < MAX_REWRITE_DEPTH:
                makers = (ir_graph.producer(v) for v in n.inputs if v is not None)
                pending += [(p, depth + 1) for p in makers]
    return found


def _identity(move: Move) -> object:
    return frozenset(move.change.items())


def _faster_moves(
    ctx: GraphContext, moves: list[Move], costs: GraphCosts, stop: Callable[[], bool]
) -> list[Move]:
    """Return those of disjoint moves with which a run takes less time: of those that lengthen no
    run of the nodes around them all, or those of halves or quarters."""
    graph, kept = ctx.graph, list[Move]()
    best = costs.run_cost(graph)
    pending = [([m for m in moves if costs.run_delta(ctx, m.change) <= MIN_GAIN_US], 0)]
    is_first = True
    while pending and (is_first or not stop()):
        group, depth = pending.pop()
        is_first = False
        after, _ = _apply(graph, [*kept, *group])
        us = costs.run_cost(after)
        if us < best - MIN_GAIN_US:
            kept, best = [*kept, *group], us
        elif len(group) > 1 and depth < MAX_HALVINGS:
            middle = len(group) // 2
            pending += [(group[middle:], depth + 1), (group[:middle], depth + 1)]
    return kept


def _disjoint_moves(good: list[Move]) -> list[Move]:
    """Return the best moves that touch no node twice."""
    taken: set[ir_graph.Node] = set()
    out: list[Move] = []
    for m in good:
        touched = set(m.match.nodes) | set(m.effect.removed)
        if touched & taken:
            continue
        taken |= touched
        out.append(m)
    return out


def _apply(graph: ir_graph.Graph, chosen: list[Move]) -> tuple[ir_graph.Graph, list[Step]]:
    """Apply all of `chosen` at once, or as many as possible if all would make a cycle."""
    try:
        after = apply_together(graph, [m.change for m in chosen])
    except ReplacementCycle:
        return _apply_one_by_one(graph, chosen)
    if after == graph:
        return graph, []
    return after, [Step(m.rule.name, None, m.change, m.effect.us, graph, after) for m in chosen]


def _apply_one_by_one(
    graph: ir_graph.Graph, chosen: list[Move]
) -> tuple[ir_graph.Graph, list[Step]]:
    """Apply as many of `chosen`, best first, as are acyclic together."""
    kept: list[Move] = []
    after = graph
    for m in chosen:
        try:
            after = apply_together(graph, [k.change for k in (*kept, m)])
        except ReplacementCycle:
            continue
        kept.append(m)
    return after, [Step(m.rule.name, None, m.change, m.effect.us, graph, after) for m in kept]
