"""The rules of a search, indexed by the nodes that they can start from."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from superopt.rules.lang.rule import Rule
from superopt.rules.match.rule_index import RuleIndex, shared_index


@dataclass(frozen=True, slots=True)
class RuleSet:
    """Rules in order, and the index of their matches."""

    rules: tuple[Rule, ...]
    index: RuleIndex

    def select(self, keep: Callable[[Rule], bool]) -> RuleSet:
        """Return the rules that `keep` is True for."""
        return rule_set(r for r in self.rules if keep(r))


def rule_set(rules: Iterable[Rule]) -> RuleSet:
    """Return a set of `rules`, each name once."""
    each = tuple({r.name: r for r in rules}.values())
    return RuleSet(each, shared_index(each))
