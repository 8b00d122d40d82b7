"""Two numbers may agree on what three do not: e3, of two, is 0."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from superopt.ir import graph
from superopt.partial.regions.find import find_regions
from superopt.partial.regions.points import MODULUS
from tests.support.partial.regions import apply, given_

X, Y = given_("x", 5, 2), given_("y", 5, 1)


def number(n: float) -> graph.Constant:
    return graph.constant(np.float32(n))


def total(v: graph.Value) -> graph.Value:
    return apply("ReduceSum", v, axes=(0,), keepdims=1)


def power(v: graph.Value, n: int) -> graph.Value:
    return apply("Pow", v, number(n))


def times(a: graph.Value, b: graph.Value) -> graph.Value:
    return apply("Mul", a, b)


def thrice(v: graph.Value) -> graph.Value:
    """The third power, as a product over three places."""
    return apply("ReduceProd", apply("Expand", v, shape=(3, 2)), axes=(0,), keepdims=1)


SUM = total(X)
OF_TWO = apply(  # (a + b)^3, as 3 (a + b) (a^2 + b^2) - 2 (a^3 + b^3)
    "Sub",
    times(number(3), times(SUM, total(power(X, 2)))),
    times(number(2), total(power(X, 3))),
)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (power(SUM, 3), OF_TWO),
        (thrice(SUM), OF_TWO),
        (apply("Div", power(SUM, 2), OF_TWO), apply("Reciprocal", SUM)),
        (apply("Tanh", power(SUM, 3)), apply("Tanh", OF_TWO)),
        (apply("Relu", power(SUM, 3)), apply("Relu", OF_TWO)),
        (total(times(Y, apply("Tanh", power(SUM, 3)))), total(times(Y, apply("Tanh", OF_TWO)))),
    ],
)
def test_powers_of_sums_have_many_factors(a: graph.Value, b: graph.Value) -> None:
    """These were called equal, since each function counted one."""
    assert not find_regions(a, b).equal


def test_the_chance_counts_them() -> None:
    for same in (power(SUM, 3), thrice(SUM)):
        assert find_regions(same, times(SUM, times(SUM, SUM))).equal_share == 1
        chance = find_regions(same, OF_TWO).chance
        assert chance is not None
        assert chance >= Fraction(3, MODULUS) ** 2
    quotient = find_regions(apply("Div", power(SUM, 2), OF_TWO), apply("Reciprocal", SUM)).chance
    assert quotient is not None
    assert quotient >= Fraction(6, MODULUS) ** 2
