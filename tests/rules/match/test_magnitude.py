"""Sums are not regrouped around large constants; everything else is."""

import numpy as np
import pytest

from superopt.ir.graph import constant
from superopt.rules.match.magnitude import magnitude
from tests.support.rules.places import graph, refusals, results_of


@pytest.mark.parametrize("mask", [-10000.0, -3.4028235e38, -np.inf, np.nan])
def test_a_constants_magnitude_is_its_largest_element(mask: float) -> None:
    array = np.array([0.5, mask], np.float32)
    found = magnitude(constant(array))
    assert np.array_equal(found, abs(float(array[1])), equal_nan=True)


X = "x: f32[2, 3]"
M = "m: f32[2, 3]"
BIG = "big = const f32[1] [-1e4]"
ASSOC = "r(x: num, y: num, z: num): Add(Add(x, y), z) => Add(x, Add(y, z)) ; float=E1"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["%0 = Relu(x)"], 1.0),
        ([BIG, "%0 = Mul(x, big)"], 1e4),
        ([BIG, "%0 = Mul(x, big)", "%1 = Transpose(%0)"], 1e4),
        ([BIG, "c = const f32[1] [-1e3]", "%0 = Mul(x, big)", "%1 = Div(%0, c)"], 10.0),
        ([BIG, "%0 = Add(x, big)", "%1 = Softmax(%0)"], 1.0),
        ([BIG, "c = const f32[1] [0.0]", "%0 = Add(x, big)", "%1 = Mul(%0, c)"], 0.0),
        (["c = const f32[] [3e38]", "%0 = Clip(x, None, c)"], 1.0),
        ([BIG, "%0 = Div(x, big)"], 1e-4),
        ([BIG, "%0 = Neg(big)", "%1 = Div(x, %0)"], 1e-4),
        ([BIG, "%0 = Reciprocal(big)", "%1 = Mul(x, %0)"], 1e-4),
        (["c = const i64[1] [5000]", "%0 = Cast(x, to=i64)", "%1 = Add(%0, c)"], 5000.0),
    ],
)
def test_magnitudes_through_operators(lines: list[str], expected: float) -> None:
    (v,) = graph(X, *lines, lines[-1].split()[0]).outputs
    assert magnitude(v) == pytest.approx(expected)


def test_a_long_chain_takes_no_recursion() -> None:
    lines = [BIG, "%0 = Mul(x, big)", *(f"%{k} = Relu(%{k - 1})" for k in range(1, 3000))]
    (v,) = graph(X, *lines, "%2999").outputs
    assert magnitude(v) == 1e4


MASKED = [X, M, BIG, "%0 = Mul(m, big)", "%1 = Add(x, %0)"]


def test_a_sum_with_a_mask_is_not_regrouped() -> None:
    g = graph(*MASKED, "%2 = Add(%1, m)", "%2")
    found = refusals(ASSOC, g)
    assert [r.reason for r in found] == ["rounding", "rounding"]
    assert found[0].detail == "an operand of Add may be as large as 1e+04"
    plain = graph(X, M, "%0 = Add(x, m)", "%1 = Add(%0, m)", "%1")
    assert "%0 = Add(m, m); %1 = Add(x, %0); return %1" in results_of(ASSOC, plain)


def test_what_is_exact_moves_a_mask_all_the_same() -> None:
    g = graph(*MASKED, "%2 = Transpose(%1)", "%2")
    move = "r(x: f, y: f): Transpose(Add(x, y)) => Add(Transpose(x), Transpose(y)) ; float=E0"
    assert not refusals(move, g)
    assert len(results_of(move, g)) == 1


def test_integers_do_not_round() -> None:
    g = graph("i: i64[2]", "c = const i64[] [100000]", "%0 = Add(i, c)", "%1 = Add(%0, i)", "%1")
    assert not refusals(ASSOC, g)
    assert results_of(ASSOC, g)


def test_constants_are_summed_whatever_their_size() -> None:
    g = graph(X, BIG, "c = const f32[1] [2.0]", "%0 = Add(x, c)", "%1 = Mul(%0, big)", "%1")
    fold = "r(x: f, c: f, d: f): Mul(Add(x, c), d) => Mul(x, Add(c, d)) where const(c) ; float=E2"
    assert not refusals(fold, g)
    assert results_of(fold, g)


def test_what_was_made_small_is_not_lost_beside_what_was_not() -> None:
    # A score that was divided by a mask is in the last digits of what it is added to.
    small = [X, M, BIG, "%0 = Div(x, big)"]
    found = refusals(ASSOC, graph(*small, "%1 = Add(%0, m)", "%2 = Add(%1, m)", "%2"))
    assert [r.reason for r in found] == ["rounding", "rounding"]
    # An epsilon is meant to be small.
    eps = [X, M, "eps = const f32[1] [1e-5]", "%0 = Add(x, eps)", "%1 = Add(%0, m)", "%1"]
    assert not refusals(ASSOC, graph(*eps))
