"""The inputs of a trial."""

import numpy as np

from superopt.rules.lang.rule import parse_rules
from superopt.rules.trial.draws import mix_in_rule_numbers


def test_numbers_of_a_rule_are_mixed_into_elements_that_are_no_indices() -> None:
    (rule,) = parse_rules("t(x: f): Mul(x, 7) => Mul(7, x)")
    kinds = {"float": np.float64, "integer": np.int64, "index": np.int64, "flag": np.bool_}
    feeds = {name: np.zeros(64, kind) for name, kind in kinds.items()}
    mix_in_rule_numbers(rule, feeds, 0, {"index"})
    assert {name: 7 in x for name, x in feeds.items()} == {
        "float": True,
        "integer": True,
        "index": False,
        "flag": False,
    }
    assert not feeds["index"].any()
    assert not feeds["flag"].any()
