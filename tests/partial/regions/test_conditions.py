"""Conditions that hold for few inputs are met, on both sides."""

from __future__ import annotations

import numpy as np
import pytest

from superopt.ir import graph
from superopt.partial.regions.find import find_regions
from superopt.te.expr.dtype import BOOL, I64
from tests.support.partial.regions import LARGER, X, Y, Z, apply, const, given_, other

W, V, S = given_("w", 4, 3, 8), given_("v", 3), given_("s", 1)
N, M = other("n", I64, 4, 3), other("m", I64, 4, 3)
P, Q = given_("p", 4, 3), given_("q", 4, 3)
TOTAL = apply("ReduceSum", W, axes=(2,), keepdims=0)
MOST = apply("ReduceMax", W, axes=(2,), keepdims=0)


def whole(n: int) -> graph.Constant:
    return graph.constant(np.int64(n))


def between(x: graph.Value, low: float, by: float) -> graph.Value:
    above = apply("Greater", x, const(low))
    return apply("And", above, apply("Less", x, const(low + by)))


def scaled(x: graph.Value, by: float) -> graph.Value:
    return apply("Mul", x, const(by))


@pytest.mark.parametrize(
    "condition",
    [
        apply("Equal", X, const(1.5)),
        apply("Greater", TOTAL, const(900)),
        apply("Equal", MOST, const(2.75)),
        between(X, 3, 0.01),
        between(scaled(X, 100), 391, 0.02),
        between(apply("Mul", MOST, MOST), 334, 0.01),
        between(apply("Exp", apply("Neg", S)), 0.28, 0.002),
        between(apply("Sigmoid", X), 0.37, 0.0005),
        apply("Equal", X, apply("Add", Y, const(0.37))),
        apply("Equal", apply("Mul", X, Y), const(2.75)),
        apply("Equal", S, const(77.125)),
        apply("Greater", V, const(700.25)),
        between(apply("Max", LARGER, scaled(Z, 100)), -5.714, 0.002),
        apply("Equal", N, whole(1000)),
        apply("Greater", N, whole(1000)),
        apply("Equal", apply("Mul", N, M), whole(91)),
    ],
)
def test_a_condition_that_rarely_holds(condition: graph.Value) -> None:
    assert find_regions(apply("Where", condition, P, Q), Q).equal_share == 0


@pytest.mark.parametrize("at", [7, 1007])
@pytest.mark.parametrize("x", [X, N])
def test_a_number_that_is_no_zero_is_true(x: graph.Input, at: int) -> None:
    left = apply("Sub", x, const(at + 0.5) if x is X else whole(at))
    chosen = apply("Where", apply("Cast", left, to=BOOL), x, left)
    assert find_regions(chosen, x).equal_share == 0


@pytest.mark.parametrize(("x", "y"), [(N, M), (X, Y)])
def test_two_conditions_that_hold_only_together(x: graph.Input, y: graph.Input) -> None:
    four, none = (whole(4), whole(0)) if x is N else (const(4), const(0))
    fourth, zero = apply("Equal", y, four), apply("Equal", x, none)
    assert find_regions(fourth, apply("And", fourth, apply("Not", zero))).equal_share == 0


def test_integers_of_which_the_least_is_a_number() -> None:
    least = apply("ReduceMin", N, axes=(1,))
    fourth = apply("ReduceMin", apply("Div", N, whole(4)), axes=(1,))
    assert (
        find_regions(apply("Equal", fourth, whole(7)), apply("Equal", least, whole(4))).equal_share
        == 0
    )


@pytest.mark.parametrize("size", [6, 12])
@pytest.mark.parametrize("op", ["Abs", "Relu"])
def test_what_turns_at_zero(op: str, size: int) -> None:
    """The largest of many sums is rarely below 0: of 512 inputs without rows of one sign never."""
    z = given_("z", size, size)
    most = apply("ReduceMax", apply("MatMul", z, z), axes=(1,))
    assert find_regions(most, apply(op, most)).equal_share == 0
    assert find_regions(apply("Sign", apply("Relu", most)), apply("Sign", most)).equal_share == 0


@pytest.mark.parametrize("k", [2, 3])
def test_conditions_that_hold_together_of_small_numbers(k: int) -> None:
    """All x y - x of a window are below 0 where all numbers lie between 0 and 1."""
    x = given_("x", 1, 1, 6, 6)
    turned = apply("Transpose", x, perm=(0, 1, 3, 2))
    less = apply("Sub", apply("Mul", x, turned), x)
    a, b = (apply("MaxPool", v, kernel_shape=(k, k)) for v in (less, apply("Relu", less)))
    found = find_regions(a, b)
    assert found.is_exact
    assert found.equal_share == 0


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (apply("Floor", apply("Add", X, const(0.001))), apply("Floor", X)),
        (apply("Round", apply("Add", X, const(0.001))), apply("Round", X)),
        (apply("Max", X, const(-5000)), X),
        (apply("Where", apply("Greater", X, const(1000.5)), X, LARGER), LARGER),
        (apply("Clip", X, const(0), const(6)), apply("Clip", X, const(0), const(6.001))),
    ],
)
def test_functions_that_rarely_differ(a: graph.Value, b: graph.Value) -> None:
    assert find_regions(a, b).equal_share == 0


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (apply("Greater", X, const(4)), apply("Greater", scaled(X, 0.25), const(1))),
        (apply("Less", apply("Mul", X, X), const(-1)), apply("Less", apply("Abs", X), const(-2))),
        (between(X, 3, 0.25), between(scaled(X, 2), 6, 0.5)),
    ],
)
def test_the_same_conditions(a: graph.Value, b: graph.Value) -> None:
    found = find_regions(apply("Where", a, P, Q), apply("Where", b, P, Q))
    assert found.equal_share == 1
    assert found.is_exact
