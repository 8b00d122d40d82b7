"""Division of polynomials."""

from superopt.verifier.context import ProofContext
from superopt.verifier.poly import polynomial


def test_a_sum_divides_itself_and_no_other_sum() -> None:
    context = ProofContext()
    n, zero, one = (
        polynomial.symbol(context, "n"),
        polynomial.const(context, 0),
        polynomial.const(context, 1),
    )
    assert polynomial.divide(n + 1, n + 1) == (one, zero)
    assert polynomial.divide(n + 2, n + 1) == (zero, n + 2)
