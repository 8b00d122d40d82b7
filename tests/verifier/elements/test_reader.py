"""Casts that change nothing."""

from superopt.te.expr.dtype import I8, I16, I32
from superopt.verifier.context import ProofContext
from superopt.verifier.elements import normal
from superopt.verifier.elements.algebra import power
from superopt.verifier.elements.reader import Reader
from superopt.verifier.elements.simplify import multiply
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
