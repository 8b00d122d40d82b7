"""Lower bounds of polynomials from the ranges of their atoms."""

from superopt.verifier.context import ProofContext
from superopt.verifier.poly import polynomial
from superopt.verifier.poly.bounds import _lower_bounds, is_independent_linear
from superopt.verifier.poly.polynomial import atom_poly, fresh_var, minimum, quotient_atom, symbol


def test_a_quotient_or_minimum_is_replaced_by_its_bounds() -> None:
    context = ProofContext()
    n, m, k, t = (symbol(context, name) for name in "nmkt")
    v = atom_poly(fresh_var(k * n))
    assert _lower_bounds(t - atom_poly(quotient_atom(n, k))) == [t - n]
    assert _lower_bounds(t - atom_poly(quotient_atom(v, k))) == [t - v, t - n + 1]
    assert _lower_bounds(t + k * atom_poly(quotient_atom(n, k))) == [t + n - k + 1]
    assert set(_lower_bounds(t - minimum(n, m))) == {t - n, t - m}


def test_only_linear_polynomials_of_sizes_and_variables_are_independent() -> None:
    context = ProofContext()
    n, m = (polynomial.symbol(context, name) for name in "nm")
    i = polynomial.atom_poly(polynomial.fresh_var(n))
    j = polynomial.atom_poly(polynomial.fresh_var(n * m))
    half = polynomial.atom_poly(polynomial.quotient_atom(n, polynomial.const(context, 2)))
    assert is_independent_linear(n * 2 - i - 1)
    assert not is_independent_linear(n * m - 1)
    assert not is_independent_linear(n - half)
    assert not is_independent_linear(j - n)  # the extent of j is not linear
