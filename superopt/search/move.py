"""Moves: one rewrite, or a tactic's sequence of them, with its effect on the cost."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from superopt.cost.model import Costs
from superopt.ir import graph as g
from superopt.rules.build import Refusal, rewrite
from superopt.rules.context import GraphContext
from superopt.rules.match import Match
from superopt.rules.rule import Rule
from superopt.search.book import Book
from superopt.search.view import Delta, delta

SHOWN = 8  # places named for each reason


@dataclass(frozen=True, slots=True)
class Move:
    """A rewrite at one place: the rule, the match, the replacements, and the change in cost."""

    rule: Rule
    match: Match
    change: Mapping[g.Value, g.Value]
    effect: Delta


@dataclass(frozen=True, slots=True)
class Inside:
    """The place of a rewrite inside a piece of the graph: the index of the piece, the piece before
    it, and the replacements there."""

    piece: int
    before: g.Graph
    change: Mapping[g.Value, g.Value]


@dataclass(frozen=True, slots=True)
class Step:
    """An applied rewrite, with the graph before and the graph after."""

    rule: str
    tactic: str | None
    change: Mapping[g.Value, g.Value]
    us: float
    before: g.Graph
    after: g.Graph
    inside: Inside | None = None


@dataclass(slots=True)
class Refused:
    """Places where a rewrite was refused for one reason: how many, and the first few."""

    count: int = 0
    values: list[g.Value] = field(default_factory=list)
    least_us: float = float("inf")  # cost that the cheapest of them would add


@dataclass(slots=True)
class Refusals:
    """Why matches were not rewritten, by (rule, reason, detail)."""

    table: dict[tuple[str, str, str], Refused] = field(default_factory=dict)

    def note(
        self, rule: str, reason: str, detail: str, values: Collection[g.Value], us: float = 0.0
    ) -> None:
        row = self.table.setdefault((rule, reason, detail), Refused())
        row.count += 1
        row.least_us = min(row.least_us, us)
        if len(row.values) < SHOWN:
            row.values += [v for v in values if v not in row.values]


Known = dict[object, Mapping[g.Value, g.Value] | Refusal]


def _rewritten(
    match: Match, ctx: GraphContext, known: Known | None
) -> Mapping[g.Value, g.Value] | Refusal:
    """Return `rewrite` of a match, cached: it depends on the match only, not on the rest of the
    graph."""
    if known is None:
        return rewrite(match, ctx)
    key = (match.rule.name, match.part, match.cells)
    change = known.get(key)
    if change is None:
        change = known[key] = rewrite(match, ctx)
    return change


def _idle(ctx: GraphContext, change: Mapping[g.Value, g.Value], costs: Costs) -> bool:
    """True if the rewrite only changes how constants are computed.

    That is free before and after; there are thousands of ways to write 2 * 3.
    """
    if not all((n := g.producer(v)) is not None and costs.is_constant(n) for v in change):
        return False
    return any((n := g.producer(v)) is not None and n not in ctx.position for v in change.values())


def moves(
    ctx: GraphContext,
    rules: Book,
    costs: Costs,
    refusals: Refusals,
    near: Collection[g.Node] | None = None,
    known: Known | None = None,
) -> Iterator[Move]:
    """Yield every rewrite of the graph (touching `near`, if given), rules in their order.

    cache: rewrites of matches in other graphs: most recur, since graphs share their nodes.
    """
    for match in rules.index.matches(ctx, near):
        rule = match.rule
        change = _rewritten(match, ctx, known)
        if isinstance(change, Refusal):
            refusals.note(rule.name, change.reason, change.detail, match.roots)
            continue
        if all(old is new for old, new in change.items()) or _idle(ctx, change, costs):
            continue
        effect = delta(ctx, change, costs)
        if effect is not None:
            yield Move(rule, match, change, effect)
