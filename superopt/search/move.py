"""Moves: one rewrite, or a tactic's sequence of them, with its effect on the cost."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from superopt.cost.graph_cost import GraphCosts, Replacement
from superopt.ir import graph
from superopt.rules.lang.rule import Rule
from superopt.rules.match.graph_context import GraphContext
from superopt.rules.match.matcher import Match
from superopt.rules.match.rewrite import Refusal, rewrite
from superopt.search.cost_delta import (
    Delta,
    find_replacement,
    measured_delta,
    replacement_delta,
)
from superopt.search.rule_set import RuleSet

MAX_PLACES_SHOWN = 8  # places named for each reason


@dataclass(frozen=True, slots=True)
class Move:
    """A rewrite at one place: the rule, the match, the replacements, and the change in cost."""

    rule: Rule
    match: Match
    change: Mapping[graph.Value, graph.Value]
    effect: Delta


@dataclass(frozen=True, slots=True)
class PieceChange:
    """The place of a rewrite inside a piece of the graph: the graph that was split into pieces, the
    index of the piece, the piece before it, and the replacements there."""

    split: graph.Graph
    piece: int
    before: graph.Graph
    change: Mapping[graph.Value, graph.Value]


@dataclass(frozen=True, slots=True)
class Step:
    """An applied rewrite, with the graph before and the graph after."""

    rule: str
    tactic: str | None
    change: Mapping[graph.Value, graph.Value]
    us: float
    before: graph.Graph
    after: graph.Graph
    piece_change: PieceChange | None = None


@dataclass(slots=True)
class RefusalCount:
    """Places where a rewrite was refused for one reason: how many, and the first few."""

    count: int = 0
    values: list[graph.Value] = field(default_factory=list)
    min_us: float = float("inf")  # cost that the cheapest of them would add


@dataclass(slots=True)
class Refusals:
    """Why matches were not rewritten, by (rule, reason, detail)."""

    table: dict[tuple[str, str, str], RefusalCount] = field(default_factory=dict)

    def record(
        self, rule: str, reason: str, detail: str, values: Collection[graph.Value], us: float = 0.0
    ) -> None:
        row = self.table.setdefault((rule, reason, detail), RefusalCount())
        row.count += 1
        row.min_us = min(row.min_us, us)
        if len(row.values) < MAX_PLACES_SHOWN:
            row.values += [v for v in values if v not in row.values]


RewriteCache = dict[object, Mapping[graph.Value, graph.Value] | Refusal]


def _cached_rewrite(
    match: Match, ctx: GraphContext, cache: RewriteCache | None
) -> Mapping[graph.Value, graph.Value] | Refusal:
    """Return `rewrite` of a match, cached: it depends on the match only, not on the rest of the
    graph."""
    if cache is None:
        return rewrite(match, ctx)
    key = (match.rule.name, match.part, match.cells)
    change = cache.get(key)
    if change is None:
        change = cache[key] = rewrite(match, ctx)
    return change


def _is_constant_only(
    ctx: GraphContext, change: Mapping[graph.Value, graph.Value], costs: GraphCosts
) -> bool:
    """True if the rewrite only changes how constants are computed.

    That is free before and after; there are thousands of ways to write 2 * 3.
    """
    if not all((n := graph.producer(v)) is not None and costs.is_constant(n) for v in change):
        return False
    return any(
        (n := graph.producer(v)) is not None and n not in ctx.position for v in change.values()
    )


def measured_move(ctx: GraphContext, costs: GraphCosts, move: Move) -> Move | None:
    """Return a move with what it adds and removes measured; None if that has no cost."""
    effect = measured_delta(ctx, move.change, move.effect, costs)
    return None if effect is None else replace(move, effect=effect)


def find_moves(
    ctx: GraphContext,
    rules: RuleSet,
    costs: GraphCosts,
    refusals: Refusals,
    near: Collection[graph.Node] | None = None,
    cache: RewriteCache | None = None,
) -> Iterator[Move]:
    """Yield every rewrite of the graph (touching `near`, if given), rules in their order; where
    costs take long to compute, those first that gain by the sum over operators.

    cache: rewrites of matches in other graphs: most recur, since graphs share their nodes.
    """
    found = _find_rewrites(ctx, rules, costs, refusals, near, cache)
    if costs.has_plans and not costs.has_streams and near is None:
        found = _promising_first(found, costs)
    for match, r in found:
        effect = replacement_delta(r, costs)
        if effect is not None:
            yield Move(match.rule, match, r.change, effect)


def _find_rewrites(
    ctx: GraphContext,
    rules: RuleSet,
    costs: GraphCosts,
    refusals: Refusals,
    near: Collection[graph.Node] | None,
    cache: RewriteCache | None,
) -> Iterator[tuple[Match, Replacement]]:
    for match in rules.index.matches(ctx, near):
        rule = match.rule
        change = _cached_rewrite(match, ctx, cache)
        if isinstance(change, Refusal):
            refusals.record(rule.name, change.reason, change.detail, match.roots)
            continue
        if all(old is new for old, new in change.items()) or _is_constant_only(ctx, change, costs):
            continue
        r = find_replacement(ctx, change)
        if r is not None:
            yield match, r


def _promising_first(
    found: Iterator[tuple[Match, Replacement]], costs: GraphCosts
) -> Iterator[tuple[Match, Replacement]]:
    """Return the rewrites that gain by the sum over operators as they are found, then the others in
    the order of their costs by it."""
    others: list[tuple[float, int, tuple[Match, Replacement]]] = []
    for each in found:
        us = costs.rough_us(each[1])
        if us < 0:
            yield each
        else:
            others.append((us, len(others), each))
    for _, _, each in sorted(others, key=lambda row: row[:2]):
        yield each
