"""Functions and arithmetic of formulas, and how many arguments they take."""

from fractions import Fraction
from inspect import signature

import pytest

from superopt.rules.lang.functions import FUNCTIONS, NotKnown, Result, apply_binary


@pytest.mark.parametrize("name", FUNCTIONS)
def test_declared_numbers_of_arguments_are_those_of_the_implementation(name: str) -> None:
    function = FUNCTIONS[name]
    parameters = signature(function.evaluate).parameters.values()
    runs = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    required = sum(p.default is p.empty and p.kind is not p.VAR_POSITIONAL for p in parameters)
    assert 1 <= function.min_args <= function.max_args
    if not runs:
        assert (function.min_args, function.max_args) == (required, len(parameters))


@pytest.mark.parametrize(
    ("a", "b", "power"),
    [
        (2, 3, 8),
        (2, -1, Fraction(1, 2)),
        (4, 0.5, 2.0),
        (4, Fraction(1, 2), 2.0),
        (2.0, -2, 0.25),
        (4, 2.0, 16.0),
        (2, 64, 2**64),
    ],
)
def test_powers(a: Result, b: Result, power: Result) -> None:
    found = apply_binary("**", a, b)
    assert found == power
    assert type(found) is type(power)


@pytest.mark.parametrize("exponent", [65, -65])
def test_powers_with_large_exponents_are_floats(exponent: int) -> None:
    found = apply_binary("**", 2, exponent)
    assert isinstance(found, float)
    assert found == 2.0**exponent


def test_a_root_of_a_negative_number_is_not_known() -> None:
    with pytest.raises(NotKnown, match="not real"):
        apply_binary("**", -1, 0.5)
