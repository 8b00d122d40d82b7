"""The rules of a search, indexed by the operators that a graph must have for them to match."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from superopt.ir import graph as g
from superopt.ir.op import Op
from superopt.rules.context import GraphContext
from superopt.rules.plan import plan
from superopt.rules.rule import Rule

DEEP = 4  # nodes from a root to the deepest that its rule covers, for most rules


@dataclass(frozen=True, slots=True)
class Book:
    """Rules in order; which of them can match at all is remembered by a graph's operators."""

    rules: tuple[Rule, ...]
    _fitting: dict[object, tuple[Rule, ...]] = field(default_factory=dict)

    def where(self, keep: Callable[[Rule], bool]) -> Book:
        """The rules that `keep` holds for."""
        return Book(tuple(r for r in self.rules if keep(r)))

    def fitting(self, ctx: GraphContext, near: Collection[g.Node] | None) -> tuple[Rule, ...]:
        """The rules whose operators the graph has, one of their roots around `near`."""
        there = frozenset(ctx.by_op)
        around = None if near is None else frozenset(ctx.near(near, DEEP - 1))
        found = self._fitting.get((there, around))
        if found is None:
            found = tuple(r for r in self.rules if _fits(r, there, around))
            self._fitting[there, around] = found
        return found


def book(rules: Iterable[Rule]) -> Book:
    """A book of `rules`, each name once."""
    return Book(tuple({r.name: r for r in rules}.values()))


def _fits(rule: Rule, there: frozenset[Op], around: frozenset[Op] | None) -> bool:
    p = plan(rule)
    if not p.ops <= there:
        return False
    return around is None or any(s.depth > DEEP or s.op in around for s in p.starts)
