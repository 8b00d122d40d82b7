"""Models refute a guard only if their numbers falsify it."""

from random import Random

import pytest

from superopt.verifier.context import ProofContext
from superopt.verifier.poly import polynomial
from superopt.verifier.poly.models import Model


@pytest.mark.parametrize(
    ("kind", "held"),
    [("ge", (False, True, True)), ("eq", (False, True, False)), ("ne", (True, False, True))],
)
def test_guards_at_minus_one_zero_and_one(kind: str, held: tuple[bool, ...]) -> None:
    context = ProofContext()
    model = Model(Random(0), 0, {})
    assert tuple(model.holds(kind, polynomial.const(context, n)) for n in (-1, 0, 1)) == held
