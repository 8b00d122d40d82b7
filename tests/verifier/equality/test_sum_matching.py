"""Sums that cancel."""

from superopt.verifier.context import ProofContext
from superopt.verifier.elements import normal
from superopt.verifier.elements.algebra import exponential, power, reciprocal
from superopt.verifier.elements.normal import NF
from superopt.verifier.elements.simplify import multiply, sum_over
from superopt.verifier.equality.sum_matching import cancel_equal_sums
from superopt.verifier.poly.facts import without_hypotheses
from superopt.verifier.poly.polynomial import Var, atom_poly, fresh_var, symbol


def test_a_sum_of_parts_of_a_sum_is_the_whole() -> None:
    """The sum over i and j of y[i] exp(x[i, j]) / (sum over k of exp(x[i, k])) is that of y[i]."""
    context = ProofContext()
    facts = without_hypotheses(context)
    n, m = symbol(context, "n"), symbol(context, "m")
    i, j, k = fresh_var(n), fresh_var(m), fresh_var(m)

    def element(column: Var) -> NF:
        x = normal.read(context, "x", (atom_poly(i), atom_poly(column)))
        return exponential(power(x), facts)

    y = power(normal.read(context, "y", (atom_poly(i),)))
    share = multiply(element(j), reciprocal(sum_over(element(k), (k,), facts), facts), facts)
    whole = sum_over(multiply(y, share, facts), (i, j), facts)
    assert cancel_equal_sums(whole, facts) is sum_over(y, (i,), facts)
