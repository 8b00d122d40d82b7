"""Conditions of rules: nested minima and maxima, and which instances they reject."""

import pytest

from superopt.rules.lang.rule import parse_rules
from superopt.te.expr.dtype import INDEX
from superopt.te.expr.node import Apply, Const
from superopt.verifier.instances.conditions import flatten_extreme
from superopt.verifier.prove import Limits, prove
from superopt.verifier.verdict import Proved

A, B, C = (Const(n, INDEX) for n in (1, 2, 3))


def test_only_extremes_of_the_same_kind_are_flattened() -> None:
    least, greatest = Apply("min", (A, B), INDEX), Apply("max", (A, B), INDEX)
    assert flatten_extreme(A) is None
    assert flatten_extreme(least) == ("min", [A, B])
    assert flatten_extreme(Apply("min", (least, C), INDEX)) == ("min", [A, B, C])
    assert flatten_extreme(Apply("max", (C, greatest), INDEX)) == ("max", [C, A, B])
    assert flatten_extreme(Apply("min", (greatest, C), INDEX)) == ("min", [greatest, C])


@pytest.mark.parametrize(
    ("where", "is_proved"),
    [(" where p[0] in (0,)", True), (" where not p[0] == 1", True), ("", False)],
)
def test_other_conditions_reject_instances(where: str, is_proved: bool) -> None:
    (rule,) = parse_rules(f"r(x: f[n, n]): Transpose(x, perm=p) => x{where} ; float=E0")
    assert isinstance(prove(rule, Limits(seconds=10)), Proved) == is_proved
