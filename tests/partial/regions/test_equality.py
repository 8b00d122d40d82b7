"""What is said to be equal is, and what is said to differ, exactly, does: of functions, too."""

from __future__ import annotations

import pytest

from superopt.ir import graph
from superopt.partial.regions.find import find_regions
from superopt.partial.regions.points import Points
from superopt.te.expr.dtype import BOOL, I64
from tests.support.partial.regions import LARGER, X, Y, Z, apply, const, given_, other

COLUMN, ROW = given_("v", 4, 1), given_("w", 1, 3)
IF, N, M = other("c", BOOL, 4, 3), other("n", I64, 4, 3), other("m", I64, 4, 3)
AT = other("i", I64, 4)
TWO, HALF, ONE, ZERO, NONE = map(const, (2, 0.5, 1, 0, float("-inf")))


def scaled(op: str, *operands: graph.Value) -> graph.Value:
    return apply("Mul", apply(op, *(apply("Mul", v, TWO) for v in operands)), HALF)


def below(op: str, *operands: graph.Value) -> graph.Value:
    return apply("Neg", apply(op, *(apply("Neg", v) for v in operands)))


def chosen(op: str, x: graph.Value, y: graph.Value, z: graph.Value) -> graph.Value:
    return apply("Where", apply(op, x, y), z, ZERO)


LAST = apply("Slice", X, starts=(3,), ends=(4,), axes=(0,))
MEAN = apply("Mul", apply("Add", X, Y), HALF)
SUM = apply("Add", X, Y)
WITHIN = apply("ReduceMax", given_("p", 4, 3, 2), axes=(2,), keepdims=0)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (apply("Relu", X), scaled("Relu", X)),
        (apply("Max", X, Y), scaled("Max", X, Y)),
        (apply("Max", X, Y), below("Min", X, Y)),
        (apply("Abs", X), apply("Abs", apply("Neg", X))),
        (apply("Abs", X), apply("Max", X, apply("Neg", X))),
        (apply("Relu", X), apply("Mul", apply("Add", X, apply("Abs", X)), HALF)),
        (apply("Max", X, Y), apply("Max", X, Y, MEAN)),
        (apply("Max", X, Y), apply("Sub", SUM, apply("Min", X, Y))),
        (apply("Add", apply("Max", X, Y), Z), apply("Max", apply("Add", X, Z), apply("Add", Y, Z))),
        (apply("Sign", X), below("Sign", X)),
        (apply("Abs", apply("Mul", X, Y)), apply("Mul", apply("Abs", X), apply("Abs", Y))),
        (apply("Where", apply("Greater", X, Y), X, Y), apply("Max", X, Y)),
        (apply("Ceil", apply("Max", X, Y)), apply("Max", apply("Ceil", X), apply("Ceil", Y))),
        (apply("Abs", apply("Floor", apply("Max", X, ONE))), apply("Floor", apply("Max", X, ONE))),
    ],
)  # fmt: skip
def test_laws_of_numbers_that_have_an_order(a: graph.Value, b: graph.Value) -> None:
    """They were said to differ everywhere, exactly."""
    assert find_regions(a, b).equal_share == 1


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (apply("Tanh", X), below("Tanh", X)),
        (apply("Sqrt", apply("Mul", X, X)), apply("Abs", X)),
        (apply("Sigmoid", X), apply("Sub", ONE, apply("Sigmoid", apply("Neg", X)))),
        (apply("Tanh", LARGER), apply("Max", apply("Tanh", X), apply("Tanh", Y))),
        (apply("Exp", apply("Log", X)), X),
        (apply("Round", apply("Mul", X, const(6))),
         apply("Round", apply("Exp", apply("Add", apply("Log", X), apply("Log", const(6)))))),
        (apply("Concat", apply("Exp", apply("Log", X)), apply("Max", X, Y), axis=0),
         apply("Concat", X, apply("Max", X, Y), axis=0)),
    ],
)  # fmt: skip
def test_what_is_not_known_is_not_said_to_differ(a: graph.Value, b: graph.Value) -> None:
    assert not find_regions(a, b).is_exact


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (apply("Where", IF, X, Y), X),
        (apply("Where", IF, X, Y), apply("Where", IF, X, Z)),
        (apply("Where", IF, apply("Max", X, Y), Y), apply("Where", IF, apply("Max", X, Y), Z)),
        (apply("Abs", N), N),
        (apply("Max", N, M), N),
        (apply("Gather", X, AT, axis=0), apply("Expand", LAST, shape=(4, 3))),
        (chosen("Equal", X, Y, Z), chosen("Equal", X, Y, Y)),
        (chosen("Equal", LARGER, Z, ROW), chosen("Equal", LARGER, Z, COLUMN)),
        (chosen("Greater", X, Y, Y), chosen("GreaterOrEqual", X, Y, Y)),
        (apply("Equal", X, Y), apply("Equal", X, Z)),
        (apply("Ceil", X), apply("Floor", X)),
        (apply("Relu", X), apply("Clip", X, ZERO, const(6))),
        (apply("Clip", X, const(-60), const(60)), X),
        (apply("Clip", SUM, ZERO, TWO), apply("Clip", apply("Abs", SUM), ZERO, TWO)),
        (WITHIN, apply("Mul", WITHIN, TWO)),
    ],
)  # fmt: skip
def test_what_differs_is_not_said_to_be_equal(a: graph.Value, b: graph.Value) -> None:
    """A bool was nearly always true, an integer never below 0, numbers never the same."""
    found = find_regions(a, b)
    assert (found.equal_share, found.is_exact) == (0, True)


def test_an_infinity_is_itself_and_one_more() -> None:
    x = apply("Pad", ROW, NONE, pads=(3, 0, 0, 0))
    found = find_regions(x, apply("Add", x, ONE))
    assert (found.equal_share, found.is_exact) == (0.75, True)


def test_of_scalars() -> None:
    x, y = given_("x"), given_("y")
    assert find_regions(apply("Mul", x, y), apply("Mul", y, x)).equal_share == 1
    assert find_regions(apply("Max", x, y), apply("Max", y, x)).equal_share == 1


def test_few_channels_tell_of_many_over_numbers() -> None:
    """Of 64 channels 2 are summed, whose functions at 0 are not 0."""
    x = given_("x", 64, 5)
    total = apply("ReduceSum", apply("Cosh", x), axes=(0,), keepdims=0)
    a, b = apply("Max", total, const(16)), total
    assert not (find_regions(a, b).is_exact and find_regions(a, b).equal_share == 0)


def test_few_fields_tell_what_functions_are() -> None:
    """Eight, of which each had a table of 2 x 32,768 powers made one by one, took 100 ms."""
    seeds = []
    init = Points.__post_init__

    def counted(self: Points) -> None:
        init(self)
        seeds.append(type(self))

    row = apply("Exp", X)
    with pytest.MonkeyPatch.context() as m:
        m.setattr(Points, "__post_init__", counted)
        assert find_regions(row, apply("Exp", apply("Identity", X))).equal_share == 1
    assert seeds.count(Points) <= 2


ELU, SIGMOID, ROOT = (apply(op, X) for op in ("Elu", "Sigmoid", "Sqrt"))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (apply("Max", ELU, Y), below("Min", ELU, Y)),
        (apply("Abs", ELU), apply("Max", ELU, apply("Neg", ELU))),
        (
            apply("Add", SIGMOID, apply("LeakyRelu", Y)),
            apply("Add", SIGMOID, scaled("LeakyRelu", Y)),
        ),
        (SIGMOID, apply("Clip", SIGMOID, ZERO, ONE)),
        (apply("Exp", X), apply("Abs", apply("Exp", X))),
        (apply("Tanh", apply("Max", X, Y)), apply("Tanh", below("Min", X, Y))),
    ],
)
def test_laws_of_order_beside_functions(a: graph.Value, b: graph.Value) -> None:
    found = find_regions(a, b)
    assert found.equal_share == 1
    assert found.is_exact


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (SIGMOID, apply("Clip", SIGMOID, ZERO, const(0.99))),
        (SIGMOID, apply("Clip", SIGMOID, const(0.001), ONE)),
        (apply("Tanh", X), apply("Min", apply("Tanh", X), const(0.9996))),
        (apply("Max", ELU, Y), apply("Max", ELU, apply("Max", Y, const(-0.99)))),
        (ROOT, apply("Min", ROOT, const(30))),
    ],
)
def test_functions_reach_what_they_do(a: graph.Value, b: graph.Value) -> None:
    assert find_regions(a, b).equal_share == 0


def test_integers_with_zeros_around() -> None:
    """A cell of padding alone is one number, without axes."""
    padded = apply("Pad", other("n", I64, 3, 2), pads=(0, 1, 0, 0))
    assert find_regions(padded, apply("Neg", padded)).mask().sum(0).tolist() == [3, 0, 0]


@pytest.mark.parametrize("op", ["Sign", "Tanh", "Erf"])
def test_sums_of_what_has_bounds_are_not_cut(op: str) -> None:
    """A sum of two is never below -2, one of eight is."""
    total = apply("ReduceSum", apply(op, given_("y", 2, 8)), axes=(1,))
    assert find_regions(total, apply("Max", total, const(-2.125))).equal_share == 0
