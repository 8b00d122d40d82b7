"""The rules of a search, indexed by the nodes that they can start from."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from superopt.rules.lang.rule import Rule
from superopt.rules.match.rule_index import RuleIndex, shared_index

_MERGING = re.compile("merge|enlarge|sum|pair|pointwise")  # rules that leave fewer kernels


@dataclass(frozen=True, slots=True)
class RuleSet:
    """Rules in order, and the index of their matches."""

    rules: tuple[Rule, ...]
    index: RuleIndex

    def select(self, keep: Callable[[Rule], bool]) -> RuleSet:
        """Return the rules that `keep` is True for."""
        return rule_set(r for r in self.rules if keep(r))


def merging_first(rules: RuleSet) -> RuleSet:
    """Return the rules in an order for costs in which each kernel has a launch."""
    return rule_set(sorted(rules.rules, key=lambda r: not _MERGING.search(r.name)))


def rule_set(rules: Iterable[Rule]) -> RuleSet:
    """Return a set of `rules`, each name once."""
    each = tuple({r.name: r for r in rules}.values())
    return RuleSet(each, shared_index(each))
