"""Verdicts on a sample of rules, and on the same rules with one thing changed."""

from __future__ import annotations

import pytest

from superopt.verifier.instances.choices import Ranks
from superopt.verifier.prove import Limits, prove
from superopt.verifier.verdict import Proved, Refuted, Verdict
from tests.support.rules.sample import (
    GROUPS,
    changed_sample,
    check_golden,
    number_names,
    sample,
)

RANKS = Ranks(0, 2)
LIMITS = Limits(seconds=600, work=1_000, work_beyond=500)  # work is the same on every machine


def show_verdict(verdict: Verdict) -> str:
    match verdict:
        case Proved():
            found = verdict.scope, verdict.derived, verdict.steps, verdict.obligations
            scope = f"{verdict.scope.ranks}, {verdict.scope.instances} instances"
            more = [verdict.scope.assumes[2:], *found[1:]]
            return f"proved for {scope}: {more}, to rank {verdict.max_rank}, {verdict.queries}"
        case Refuted():
            names = (f"{k} = {getattr(v, 'type', v)}" for k, v in verdict.names.items())
            return f"{verdict}, where {', '.join(names)}"
        case _:
            return number_names(str(verdict))


@pytest.mark.ci
@pytest.mark.parametrize("group", GROUPS)
def test_verdicts(group: str) -> None:
    verdicts = ((r.name, prove(r, LIMITS, RANKS)) for r in sample(group))
    check_golden("verdicts", group, (f"{name}: {show_verdict(v)}" for name, v in verdicts))


@pytest.mark.ci
@pytest.mark.parametrize("group", GROUPS)
def test_verdicts_of_rules_with_a_change(group: str) -> None:
    verdicts = ((r, prove(r, LIMITS, RANKS)) for r in changed_sample(group))
    check_golden("refuted", group, (f"{r}\n    {show_verdict(v)}" for r, v in verdicts))
