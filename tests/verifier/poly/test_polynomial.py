"""Polynomials: their division, order and guards."""

from superopt.verifier.context import ProofContext
from superopt.verifier.poly import polynomial
from superopt.verifier.poly.guards import eq, ge, negate


def test_a_sum_divides_itself_and_no_other_sum() -> None:
    context = ProofContext()
    n, zero, one = (
        polynomial.symbol(context, "n"),
        polynomial.const(context, 0),
        polynomial.const(context, 1),
    )
    assert polynomial.divide(n + 1, n + 1) == (one, zero)
    assert polynomial.divide(n + 2, n + 1) == (zero, n + 2)


def test_constants_are_numbered_below_all_other_polynomials() -> None:
    numbers = {polynomial._constant_number(n) for n in range(-99, 99)}
    assert len(numbers) == 2 * 99
    assert max(numbers) < 0
    context = ProofContext()
    assert polynomial.const(context, 5).number < 0 <= polynomial.symbol(context, "n").number


def test_guards_are_ordered_by_kind_and_number() -> None:
    context = ProofContext()
    n = polynomial.symbol(context, "n")
    guards = [eq(n), eq(n + 1), ge(n), ge(n + 1), negate(eq(n))]
    for k, g in enumerate(guards):
        assert [g < h for h in guards] == [k < j for j in range(len(guards))]


def test_sums_and_differences() -> None:
    context = ProofContext()
    n, zero = polynomial.symbol(context, "n"), polynomial.const(context, 0)
    assert n - n == zero
    assert n - zero is n + zero is zero + n is n
    assert (n + 2) - (n - 1) == polynomial.const(context, 3)
    assert zero - n == -n
    assert n - 1 + 1 is n
