"""Integer functions of elements are read as such only where they are these functions."""

import pytest

from superopt.verifier.context import ProofContext
from superopt.verifier.elements import normal
from superopt.verifier.elements.integers import MODULO, QUOTIENT, _function_args, as_poly
from superopt.verifier.poly import polynomial
from superopt.verifier.poly.facts import without_hypotheses


@pytest.mark.parametrize(
    ("name", "power", "is_read"), [(MODULO, 1, True), (QUOTIENT, 1, False), (MODULO, 2, False)]
)
def test_arguments_are_those_of_the_first_power_of_the_function(
    name: str, power: int, is_read: bool
) -> None:
    context = ProofContext()
    x, y = (normal.factor_power(normal.read(context, n, ())) for n in "xy")
    term = normal.factor_power(normal.fn(name, (x, y)), power).single_term
    assert _function_args(term, MODULO) == ((x, y) if is_read else None)


@pytest.mark.parametrize("low", [0, 1])
def test_a_remainder_is_an_index_if_the_divisor_is_positive(low: int) -> None:
    context = ProofContext()
    n = polynomial.symbol(context, "n", low)
    x = normal.factor_power(normal.read(context, "x", ()))
    remainder = normal.factor_power(normal.fn(MODULO, (x, normal.from_poly(n))))
    expected = polynomial.element_index(x, n) if low else None
    assert as_poly(remainder, without_hypotheses(context)) is expected
