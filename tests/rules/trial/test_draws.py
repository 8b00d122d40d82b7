"""The inputs of a trial."""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from superopt.ir.graph import Input
from superopt.rules.lang.rule import parse_rules
from superopt.rules.trial.draws import (
    CONSTANT_DRAWS,
    DRAWS,
    EXCEPTIONAL_SHARES,
    EXTREME_DRAWS,
    EXTREME_VALUES,
    LARGE_SCALES,
    SMALL_FRACTIONS,
    draw_array,
    mix_in_rule_numbers,
)
from superopt.te.expr.dtype import BOOL, F16, F32, F64, I64, U8, DType
from superopt.te.expr.tensor import TensorType


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


def drawn(dtype: DType, draw: str, limit: int | None = None) -> np.ndarray:
    return draw_array(Input("x", TensorType(dtype, (40, 50))), limit, draw, 0)


@pytest.mark.parametrize("draw", EXCEPTIONAL_SHARES)
def test_a_share_of_exceptional_draws_is_infinite_nan_or_zero(draw: str) -> None:
    found = drawn(F64, draw)
    exceptions = [np.isposinf(found), np.isneginf(found), np.isnan(found), found == 0]
    shares = [e.mean() for e in exceptions]
    assert sum(shares) == pytest.approx(EXCEPTIONAL_SHARES[draw], rel=0.1)
    assert min(shares) > 0.5 * max(shares)
    assert 0.1 < EXCEPTIONAL_SHARES[draw] < 0.9


@pytest.mark.parametrize("draw", EXTREME_DRAWS)
def test_half_of_an_extreme_draw_is_extreme_and_of_float64(draw: str) -> None:
    found = drawn(F32, draw)
    assert found.dtype == np.float64
    assert 0.4 < np.isin(found, EXTREME_VALUES).mean() < 0.6
    assert set(EXTREME_VALUES) <= set(found.reshape(-1))


def test_ordinary_draws_are_finite_and_of_the_type_of_their_input() -> None:
    for draw in DRAWS:
        for dtype in (F16, F32, F64):
            assert np.isfinite(drawn(dtype, draw)).all()
            assert drawn(dtype, draw).dtype == np.dtype(str(dtype).replace("f", "float"))
    assert set(np.unique(drawn(F64, "whole"))) == {-2, -1, 0, 1, 2}
    assert set(np.unique(drawn(F64, "halves"))) == set(SMALL_FRACTIONS)
    positive = drawn(F64, "positive")
    assert 0.25 <= positive.min() < 0.3
    assert 1.9 < positive.max() < 2
    for draw, scale in {"normal": 1, "small": 1e-3, **LARGE_SCALES}.items():
        assert drawn(F64, draw).std() == pytest.approx(scale, rel=0.1)


def test_a_constant_draw_has_one_exceptional_number() -> None:
    found = set()
    for seed in range(40):
        for draw in CONSTANT_DRAWS:
            x = draw_array(Input("x", TensorType(F64, (3,))), None, draw, seed)
            assert len({str(n) for n in x}) == 1
            found.add(str(x[0]))
    assert found == {"inf", "-inf", "nan", "0.0", "-1.0"}


@pytest.mark.parametrize(
    ("dtype", "draw", "limit", "values"),
    [
        (I64, "normal", None, range(-9, 10)),
        (I64, "positive", None, range(1, 10)),
        (U8, "normal", None, range(10)),
        (I64, "normal", 3, range(-3, 3)),
        (I64, "positive", 3, range(3)),
        (BOOL, "normal", None, range(2)),
    ],
)
def test_integers_and_indices(dtype: DType, draw: str, limit: int | None, values: range) -> None:
    assert set(drawn(dtype, draw, limit).reshape(-1).tolist()) == set(values)
