"""The instances of a sample of rules: every way in which their operands fit."""

from __future__ import annotations

from contextlib import closing
from itertools import islice

import pytest

from superopt.rules.lang.functions import NotKnown
from superopt.rules.lang.rule import Rule
from superopt.verifier.context import ProofContext
from superopt.verifier.instances.choices import Ranks
from superopt.verifier.instances.instance import instances
from superopt.verifier.instances.scope import (
    broadcast_only_operands,
    is_elementwise,
    rank_scope,
    unclear_reason,
)
from tests.support.rules.sample import GROUPS, check_golden, sample

RANKS = Ranks(0, 3)
MAX_INSTANCES = 12  # of each rule


def lines_of(rule: Rule) -> list[str]:
    scope = rank_scope(rule)
    about = f"ranks {scope.min_rank} to {scope.max_rank}"
    if is_elementwise(rule):
        about += ", elementwise"
    if reason := unclear_reason(rule):
        about += f", {reason}"
    if names := broadcast_only_operands(rule):
        about += f", broadcast {names}"
    lines = [f"{rule.name}: {about}"]
    with closing(ProofContext()) as context:
        try:
            for one in islice(instances(context, rule, RANKS), MAX_INSTANCES):
                shapes = [str(list(t.shape)) for t in (*one.lhs, *one.rhs)]
                derived = f" if {one.state.derived}" if one.state.derived else ""
                lines.append(f"  {one} => {' '.join(shapes)}{derived}")
        except NotKnown as e:
            lines.append(f"  {e}")
    return lines


@pytest.mark.parametrize("group", GROUPS)
def test_instances(group: str) -> None:
    check_golden("symbolic", group, (line for r in sample(group) for line in lines_of(r)))
