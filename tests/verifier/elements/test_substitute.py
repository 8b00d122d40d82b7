"""Closed terms: their bound variables are numbered above those inside."""

from superopt.verifier.context import ProofContext
from superopt.verifier.elements.substitute import _number_vars, _Occurrences
from superopt.verifier.poly import polynomial


def test_bound_variables_are_numbered_above_the_inner_level() -> None:
    n = polynomial.symbol(ProofContext(), "n")
    bound = tuple(polynomial.fresh_var(n) for _ in range(3))
    _, numbered = _number_vars(bound, 3, _Occurrences(frozenset(), (), None))
    assert [v.level for v in numbered] == [4, 5, 6]
