"""The must-fail corpus: the trial that admits a rule to the library refutes every wrong one."""

import pytest

from superopt.rules.lang.rule import Rule
from superopt.rules.library.load import load_library
from superopt.rules.trial.try_rule import Refuted, try_rule
from tests.support.rules.unsound import WRONG


def test_the_corpus_is_large_and_its_rules_are_not_the_library_s() -> None:
    assert len(WRONG) >= 60
    sound = {said(r) for r in load_library()}
    assert not [r.name for r in WRONG if said(r) in sound]


def said(r: Rule) -> tuple[object, ...]:
    return r.params, r.lhs, r.rhs, r.where, r.float_class


@pytest.mark.one_in(3)
@pytest.mark.parametrize("rule", WRONG, ids=lambda r: r.name)
def test_a_wrong_rule_is_refuted(rule: Rule) -> None:
    verdict = try_rule(rule)
    assert isinstance(verdict, Refuted), verdict
    # The counterexample says what differs, and where.
    assert verdict.left != verdict.right
    assert str(verdict.instance.inputs[0].type) in str(verdict)
