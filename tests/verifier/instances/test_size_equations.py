"""Equations between sizes: all their solutions, and only these."""

import pytest

from superopt.te.expr import index
from superopt.te.expr.node import Expr, Size
from superopt.verifier.instances.size_equations import factorings, solve_remainder

A, B, N = Size("a"), Size("b"), Size("n")


def gap(e: Expr | int) -> index.Poly:
    return index.polynomial(index.as_index(e))


@pytest.mark.parametrize("n", [1, 2, 4, 6, 7])
def test_factorings_are_all_solutions(n: int) -> None:
    found = factorings(gap(A * B - n))
    wanted = [(a, n // a) for a in range(1, n + 1) if n % a == 0]
    assert found is not None
    assert sorted((f["a"], f["b"]) for f in found) == wanted


@pytest.mark.parametrize("offset", [0, 1, 3])
@pytest.mark.parametrize("mentioned", [False, True])
def test_remainders_are_solved(offset: int, mentioned: bool) -> None:
    """(n - offset) % 4 is 0 for each value of n, and the largest values are all multiples."""
    solved = solve_remainder(gap((N - offset) % 4), {("n", offset)} if mentioned else ())
    assert solved is not None
    name, values = solved
    assert name == "n"
    found = {index.evaluate(v, {"n'": k}) for v in values for k in range(1, 5)}
    wanted = {n for n in range(1, 4 * 4 + offset + 1) if (n - offset) % 4 == 0}
    assert {n for n in found if n > 0} <= wanted
    assert {n for n in wanted if n <= 12} <= found
