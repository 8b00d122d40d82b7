"""The complete search: hill climbing, backtracking in pieces, hill climbing again."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from superopt.cost.graph_cost import GraphCosts
from superopt.ir import graph as ir_graph
from superopt.rules.lang.rule import Rule
from superopt.search.backtrack import Limits, SearchResult, StopReason, search
from superopt.search.decision_log import replay
from superopt.search.free_rules import apply_free_rules
from superopt.search.hill_climb import hill_climb
from superopt.search.move import PieceChange, Refusals, Step
from superopt.search.partition import MAX_PIECE_NODES, Piece, assemble_rewrite, split_into_pieces
from superopt.search.rule_set import RuleSet, merging_first, rule_set
from superopt.search.tactic import TACTICS, Tactic, play_tactic

# Tactics first, or hill climbing first: each finds graphs that the other cannot reach.
_STAGE_ORDERS = {
    "tactics, then climb": ("tactics", "climb"),
    "climb, then tactics": ("climb", "tactics", "climb"),
}


@dataclass(frozen=True, slots=True)
class Variant:
    """A graph worth timing: its label, its steps, and its modeled cost in microseconds."""

    label: str
    graph: ir_graph.Graph
    cost: float
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Graphs worth timing, cheapest first, and statistics of the search."""

    variants: tuple[Variant, ...]
    visited: int
    seconds: float
    stop: StopReason
    pieces: int


def improve(
    graph: ir_graph.Graph,
    given: Sequence[Rule],
    costs: GraphCosts,
    *,
    seconds: float,
    limits: Limits,
    refusals: Refusals,
    stop: Callable[[], bool] = lambda: False,
    progress: Callable[[str, float], None] = lambda text, cost: None,
    tactics: Sequence[Tactic] = TACTICS,
) -> Outcome:
    """Search from `graph` for `seconds`; deterministic given the costs unless the time runs out."""
    begin = time.monotonic()
    end = begin + seconds
    rules = rule_set(given)

    def over() -> bool:
        return stop() or time.monotonic() >= end

    steps: list[Step] = []
    variants: list[Variant] = []
    seen = 0

    def keep(label: str) -> None:
        cost = costs.run_cost(graph)
        if all(v.graph != graph for v in variants):
            variants.append(Variant(label, graph, cost, tuple(steps)))
        progress(label, cost)

    keep("original")
    orders = list(_STAGE_ORDERS.items())
    if costs.has_plans:  # tactics price far more rewrites, each by a plan
        rules = merging_first(rules) if costs.has_streams else rules
        orders = orders[::-1]
    start, first_steps = apply_free_rules(graph, rules.select(lambda r: r.name in costs.free_rules))
    rules = rules.select(lambda r: r.name not in costs.free_rules)
    for label, order in orders:
        graph, steps = start, [*first_steps]
        for stage in order:
            if over():
                break
            if stage == "climb":
                graph, more, priced = hill_climb(graph, rules, costs, refusals, stop=over)
            else:
                graph, more, priced = _play_all(tactics, graph, rules, costs, refusals, over)
            steps += more
            seen += priced
        keep(label)
    first = min(variants, key=lambda v: v.cost)
    graph, steps = first.graph, list(first.steps)
    parts: list[Piece] = [] if over() else split_into_pieces(graph, costs, MAX_PIECE_NODES)
    graph, more, visited, reason = _search_pieces(
        graph, parts, rules, costs, limits, refusals, end, stop
    )
    steps += more
    seen += visited
    keep("backtracking")
    if more and not over():
        graph, more, priced = hill_climb(graph, rules, costs, refusals, stop=over)
        steps += more
        seen += priced
        keep("climb at the end")
    if stop():
        reason = StopReason.STOPPED
    elif time.monotonic() >= end:
        reason = StopReason.SECONDS
    # What they have in common was measured again with some of them.
    variants = [replace(v, cost=costs.run_cost(v.graph)) for v in variants]
    ordered = sorted(variants, key=lambda v: v.cost)
    return Outcome(tuple(ordered), seen, time.monotonic() - begin, reason, len(parts))


def _play_all(
    tactics: Sequence[Tactic],
    graph: ir_graph.Graph,
    rules: RuleSet,
    costs: GraphCosts,
    refusals: Refusals,
    stop: Callable[[], bool],
) -> tuple[ir_graph.Graph, list[Step], int]:
    """Apply all tactics, one after the other."""
    steps: list[Step] = []
    seen = 0
    for tactic in tactics:
        graph, more, priced = play_tactic(tactic, graph, rules, costs, refusals, stop=stop)
        steps += more
        seen += priced
    return graph, steps, seen


def _search_pieces(
    graph: ir_graph.Graph,
    parts: Sequence[Piece],
    rules: RuleSet,
    costs: GraphCosts,
    limits: Limits,
    refusals: Refusals,
    end: float,
    stop: Callable[[], bool],
) -> tuple[ir_graph.Graph, list[Step], int, StopReason]:
    """Search each distinct piece once and apply the result to all its occurrences."""
    memo: dict[tuple[ir_graph.Value, ...], SearchResult] = {}
    steps: list[Step] = []
    seen = 0
    worst = StopReason.EXHAUSTED
    distinct = len({p.graph.outputs for p in parts})
    chosen = [p.graph for p in parts]
    start = graph
    for i, piece in enumerate(parts):
        found = memo.get(piece.graph.outputs)
        if found is None:
            left = end - time.monotonic()
            share = min(limits.seconds, left / max(distinct - len(memo), 1))
            if left <= 0 or stop():
                return graph, steps, seen, StopReason.SECONDS
            bound = replace(limits, seconds=share)
            found = search(piece.graph, rules, costs, bound, refusals, stop)
            memo[piece.graph.outputs] = found
            seen += found.visited
            if found.stop is not StopReason.EXHAUSTED:
                worst = found.stop
        for step in found.steps:
            inside = PieceChange(start, i, step.before, step.change)
            chosen[i] = step.after
            after, change = assemble_rewrite(start, parts, chosen, inside)
            steps.append(Step(step.rule, step.tactic, change, step.us, graph, after, inside))
            graph = after
    return graph, steps, seen, worst


def replay_decisions(
    log: str, graph: ir_graph.Graph, rules: Sequence[Rule], costs: GraphCosts, digest: str
) -> Outcome:
    """Return the outcome of an earlier search: repeat its decisions without pricing or timing.

    digest: of the model's file, which the log names.
    """
    begin = time.monotonic()
    steps = tuple(replay(log, graph, rules, digest))
    after = steps[-1].after if steps else graph
    variant = Variant("replay", after, costs.run_cost(after), steps)
    return Outcome((variant,), len(steps), time.monotonic() - begin, StopReason.EXHAUSTED, 0)
