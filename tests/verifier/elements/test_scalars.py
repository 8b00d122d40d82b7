"""Normal forms of scalar functions."""

from collections.abc import Callable
from fractions import Fraction

import pytest

from superopt.te.expr.dtype import I8
from superopt.verifier.context import ProofContext
from superopt.verifier.elements import normal
from superopt.verifier.elements.algebra import exponential, power, reciprocal
from superopt.verifier.elements.integer_functions import integer_function
from superopt.verifier.elements.intervals import INTEGER_TYPES
from superopt.verifier.elements.normal import NF
from superopt.verifier.elements.scalars import apply_function
from superopt.verifier.elements.simplify import multiply
from superopt.verifier.poly.facts import Facts, without_hypotheses


def test_the_root_of_a_reciprocal_is_the_reciprocal_of_the_root() -> None:
    context = ProofContext()
    facts = without_hypotheses(context)
    x, y = (power(normal.read(context, name, ())) for name in "xy")
    for base in (x, normal.add(x, y)):
        root = apply_function("sqrt", [base], facts)
        inverse = apply_function("sqrt", [reciprocal(base, facts)], facts)
        assert inverse is reciprocal(root, facts)


def element(context: ProofContext, name: str) -> NF:
    return power(normal.read(context, name, ()))


def test_a_power_of_an_exponential_is_an_exponential() -> None:
    facts = Facts(ProofContext())
    x, y = (element(facts.context, n) for n in "xy")
    found = apply_function("pow", [exponential(x, facts), y], facts)
    assert found is exponential(multiply(x, y, facts), facts)


OTHER_BASES: dict[str, Callable[[NF, NF, Facts], NF]] = {
    "2 exp(x)": lambda e, z, facts: normal.scale(e, 2),
    "z exp(x)": lambda e, z, facts: multiply(e, z, facts),
    "z + exp(x)": lambda e, z, facts: normal.add(e, z),
    "z": lambda e, z, facts: z,
}


@pytest.mark.parametrize("base", OTHER_BASES)
def test_powers_of_other_bases_keep_the_base(base: str) -> None:
    facts = Facts(ProofContext())
    x, y, z = (element(facts.context, n) for n in "xyz")
    a = OTHER_BASES[base](exponential(x, facts), z, facts)
    assert apply_function("pow", [a, y], facts) is power(normal.fn("pow", (a, y)))


@pytest.mark.parametrize("exponent", [Fraction(1, 4), Fraction(-3, 4), Fraction(9)])
def test_a_power_by_a_number_is_a_function_of_it(exponent: Fraction) -> None:
    """It was an endless recursion."""
    facts = Facts(ProofContext())
    x, y = (element(facts.context, n) for n in "xy")
    b = normal.constant(facts.context, exponent)
    found = apply_function("pow", [x, b], facts)
    assert found is power(normal.fn("pow", (x, b)))
    both = apply_function("pow", [x, normal.add(y, b)], facts)
    assert both is multiply(found, power(normal.fn("pow", (x, y))), facts)


def test_an_integer_is_its_quotient_and_remainder() -> None:
    facts = Facts(ProofContext())
    a, b = (element(facts.context, n) for n in "ab")
    quotient, rest = (
        integer_function(fn, [a, b], INTEGER_TYPES[I8], facts) for fn in ("div", "fmod")
    )
    assert normal.add(multiply(b, quotient, facts), rest) is a
