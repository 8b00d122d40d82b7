"""Elements and indices as they are read."""

import pytest

from superopt.te.expr.dtype import I8, I16, I32, I64
from superopt.te.expr.tensor import const, gather
from superopt.verifier.context import ProofContext
from superopt.verifier.elements import normal
from superopt.verifier.elements.algebra import power
from superopt.verifier.elements.reader import Reader
from superopt.verifier.elements.simplify import multiply
from superopt.verifier.poly import polynomial
from superopt.verifier.poly.facts import without_hypotheses


def test_only_the_element_itself_keeps_the_range_of_its_input() -> None:
    """An i8 that was widened to i32 fits in i16; its multiples, powers and functions may not."""
    context = ProofContext()
    reader = Reader(context, {}, input_types={"x": I8, "y": I8})
    x, y = (normal.read(context, name, ()) for name in "xy")
    assert reader.is_widening_cast(I32, I16, power(x))
    assert reader.is_widening_cast(I16, I32, power(x, 2))
    facts = without_hypotheses(context)
    for wider in (
        normal.scale(power(x), 2),
        power(x, 2),
        multiply(power(x), power(y), facts),
        power(normal.fn("f", (power(x),))),
        normal.add(power(x), power(y)),
        normal.constant(context, 1),
    ):
        assert not reader.is_widening_cast(I32, I16, wider), wider


@pytest.mark.parametrize(("n", "position"), [(0, 0), (4, 4), (-1, 4), (-5, 0)])
def test_a_known_index_counts_from_either_end(n: int, position: int) -> None:
    context = ProofContext()
    found = Reader(context, {}).index(gather(const(n, I64), 5), {}, without_hypotheses(context))
    assert found is polynomial.const(context, position)


@pytest.mark.parametrize("n", [5, -6])
def test_an_index_out_of_range_has_no_known_position(n: int) -> None:
    context = ProofContext()
    facts = without_hypotheses(context)
    found = Reader(context, {}).index(gather(const(n, I64), 5), {}, facts)
    at = normal.constant(context, n)
    assert found is polynomial.element_index(at, polynomial.const(context, 5))
