"""Steps and rejections grouped by rule."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from superopt.report.data.report import Rejected, Report, Step


@dataclass(frozen=True, slots=True)
class AppliedRule:
    """All steps of one rule; numbers: of each among all steps, from 1."""

    rule: str
    kind: str
    tier: str
    float_class: str
    saves_us: float
    steps: tuple[Step, ...]
    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RejectedRule:
    """All rejections of one rule for one reason."""

    rule: str
    reason: str
    count: int
    details: tuple[Rejected, ...]


def group_steps(steps: Iterable[Step]) -> tuple[AppliedRule, ...]:
    """Group steps by rule, the greatest saving first."""
    groups: defaultdict[tuple[str, str, str, str], dict[int, Step]] = defaultdict(dict)
    for number, step in enumerate(steps, 1):
        groups[step.rule, step.kind, step.tier, step.float_class][number] = step
    rows = (
        AppliedRule(
            *key, sum(s.saves_us for s in group.values()), tuple(group.values()), tuple(group)
        )
        for key, group in groups.items()
    )
    return tuple(sorted(rows, key=lambda row: (-row.saves_us, row.rule)))


def group_rejections(rejected: Iterable[Rejected]) -> tuple[RejectedRule, ...]:
    """Group rejections by rule and reason, the most frequent first."""
    groups: defaultdict[tuple[str, str], list[Rejected]] = defaultdict(list)
    for item in rejected:
        groups[item.rule, item.reason].append(item)
    rows = (
        RejectedRule(*key, sum(r.count for r in group), tuple(group))
        for key, group in groups.items()
    )
    return tuple(sorted(rows, key=lambda row: (-row.count, row.rule, row.reason)))


def filter_by_names(
    report: Report, names: Iterable[str]
) -> tuple[tuple[Step, ...], tuple[Rejected, ...]]:
    """Return the steps and rejections whose rule, or one of whose values, is among `names`."""
    wanted = set(names)
    return (
        tuple(s for s in report.steps if s.rule in wanted or wanted.intersection(s.where)),
        tuple(r for r in report.rejected if r.rule in wanted or wanted.intersection(r.where)),
    )
