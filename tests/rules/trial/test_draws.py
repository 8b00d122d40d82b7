"""The inputs of a trial."""

from fractions import Fraction
from itertools import product

import numpy as np

from superopt.rules.lang.rule import parse_rules
from superopt.rules.trial.draws import EXTREME_VALUES, SMALL_FRACTIONS, mix_in_rule_numbers


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


def test_quotients_of_small_fractions_are_exact() -> None:
    for a, b in product(SMALL_FRACTIONS, SMALL_FRACTIONS):
        assert not b or Fraction(a) / Fraction(b) == Fraction(float(np.float16(a / b)))


def test_squares_of_extreme_numbers_are_infinite_zero_or_subnormal() -> None:
    with np.errstate(all="ignore"):
        squares = EXTREME_VALUES * EXTREME_VALUES
    assert (np.isinf(squares) | (squares < np.finfo(np.float64).tiny)).all()
    assert np.isinf(squares).any()
    assert (squares == 0).any()
    assert set(EXTREME_VALUES) == set(-EXTREME_VALUES)
