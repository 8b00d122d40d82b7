"""Comparisons cancel an increasing function only where both sides have it."""

import pytest

from superopt.verifier.context import ProofContext
from superopt.verifier.elements import normal
from superopt.verifier.elements.comparisons import TOTAL_INCREASING_ODD, _cancel_monotone
from superopt.verifier.poly.facts import without_hypotheses


@pytest.mark.parametrize("left", sorted(TOTAL_INCREASING_ODD))
def test_a_function_cancels_against_itself_only(left: str) -> None:
    context = ProofContext()
    x, y = (normal.factor_power(normal.read(context, n, ())) for n in "xy")
    for right in sorted(TOTAL_INCREASING_ODD):
        f, g = normal.fn(left, (x,)), normal.fn(right, (y,))
        difference = normal.subtract(normal.factor_power(f), normal.factor_power(g))
        found = _cancel_monotone(difference, without_hypotheses(context))
        assert (found in (normal.subtract(x, y), normal.subtract(y, x))) == (left == right)
        assert (found is None) == (left != right)
