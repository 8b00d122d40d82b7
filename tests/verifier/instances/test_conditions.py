"""Conditions of rules limit the instances that are proved."""

import pytest

from superopt.rules.lang.rule import parse_rules
from superopt.verifier.prove import Limits, prove
from superopt.verifier.verdict import Proved


@pytest.mark.parametrize(
    ("where", "is_proved"),
    [(" where p[0] in (0,)", True), (" where not p[0] == 1", True), ("", False)],
)
def test_other_conditions_reject_instances(where: str, is_proved: bool) -> None:
    (rule,) = parse_rules(f"r(x: f[n, n]): Transpose(x, perm=p) => x{where} ; float=E0")
    assert isinstance(prove(rule, Limits(seconds=10)), Proved) == is_proved
