"""Elements and indices as they are read."""

import pytest

from superopt.te.expr.dtype import F16, F32, F64, I64
from superopt.te.expr.tensor import const, gather
from superopt.verifier.context import ProofContext
from superopt.verifier.elements import normal
from superopt.verifier.elements.algebra import power
from superopt.verifier.elements.reader import Reader
from superopt.verifier.elements.simplify import multiply
from superopt.verifier.poly import polynomial
from superopt.verifier.poly.facts import without_hypotheses


def test_only_the_element_itself_keeps_the_precision_of_its_input() -> None:
    """A float16 that was widened to float64 fits in float32; multiples, powers and functions of it
    may not."""
    context = ProofContext()
    types = Reader(context, {}).types
    for name in "xy":
        types.record_input(name, F16)
    x, y = (normal.read(context, name, ()) for name in "xy")
    assert types.is_widening_cast(F64, F32, power(x))
    assert types.is_widening_cast(F32, F64, power(x, 2))
    facts = without_hypotheses(context)
    for wider in (
        normal.scale(power(x), 2),
        power(x, 2),
        multiply(power(x), power(y), facts),
        power(normal.fn("f", (power(x),))),
        normal.add(power(x), power(y)),
        normal.constant(context, 1),
    ):
        assert not types.is_widening_cast(F64, F32, wider), wider


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
