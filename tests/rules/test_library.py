"""Every rule of the library: instances are found, and both sides agree on them."""

from itertools import islice

import pytest

from superopt.rules.instances import instances
from superopt.rules.rule import Rule, load_library
from superopt.rules.trial import Passed, try_rule

LIBRARY = load_library()
COUNT = 12


def test_the_library_is_large() -> None:
    assert len({r.name.removesuffix("~") for r in LIBRARY}) >= 100


@pytest.mark.parametrize("rule", LIBRARY, ids=lambda r: r.name)
def test_a_rule_passes_its_trial(rule: Rule) -> None:
    verdict = try_rule(rule, count=COUNT)
    assert isinstance(verdict, Passed), verdict
    assert verdict.instances == COUNT
