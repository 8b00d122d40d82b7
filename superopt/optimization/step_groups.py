"""The steps of a search, grouped by what reports attribute savings to."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from superopt.report.data.attribution import PartKind
from superopt.report.formatting.phrases import count_text
from superopt.search.move import Step

MAX_GROUPS = 7  # so that a table of them has at most 15 lines, with the kinds of kernel decisions
FOLDING_TITLE = "folding and simplification"


@dataclass(frozen=True, slots=True)
class StepGroup:
    """Steps of one rule, or of several that are shown together. numbers: of the steps, from 0.
    saves_us: by the cost model."""

    name: str
    kind: PartKind
    numbers: frozenset[int]
    saves_us: float


def group_by_rule(
    steps: Sequence[Step], free_rules: Collection[str] = (), max_groups: int = MAX_GROUPS
) -> tuple[StepGroup, ...]:
    """Return the steps by rule, in the order of their first steps. Those of free rules are one
    group, the first; of more than `max_groups`, those that save least are one group, the last."""
    numbers: dict[tuple[str, PartKind], list[int]] = {}
    for n, s in enumerate(steps):
        is_free = s.rule in free_rules
        key: tuple[str, PartKind] = (FOLDING_TITLE, "folding") if is_free else (s.rule, "rule")
        numbers.setdefault(key, []).append(n)
    groups = [
        StepGroup(name, kind, frozenset(some), -sum(steps[n].us for n in some))
        for (name, kind), some in numbers.items()
    ]
    groups.sort(key=lambda g: g.kind != "folding")
    rules = [g for g in groups if g.kind == "rule"]
    if len(groups) <= max_groups:
        return tuple(groups)
    ordered = sorted(rules, key=lambda g: -abs(g.saves_us))
    small = ordered[max_groups - 1 - (len(groups) - len(rules)) :]
    rest = StepGroup(
        count_text(len(small), "other rule"), "rule",
        frozenset(n for g in small for n in g.numbers), sum(g.saves_us for g in small),
    )  # fmt: skip
    return (*(g for g in groups if g not in small), rest)
