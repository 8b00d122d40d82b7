"""Sums that cancel."""

from fractions import Fraction

from superopt.verifier.context import ProofContext
from superopt.verifier.elements import normal, substitute
from superopt.verifier.elements.algebra import exponential, power, reciprocal
from superopt.verifier.elements.normal import NF, Term
from superopt.verifier.elements.simplify import multiply, sum_over
from superopt.verifier.equality.sum_matching import (
    _cancel_own_sum,
    _shear,
    are_polys_equal,
    are_sums_equal,
    cancel_equal_sums,
)
from superopt.verifier.poly import polynomial
from superopt.verifier.poly.facts import Guard, eq, ge, without_hypotheses
from superopt.verifier.poly.polynomial import Poly, Var, atom_poly, fresh_var, symbol


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


def test_a_sum_over_shifted_positions_becomes_one_over_positions() -> None:
    """Sum over p < n, o < m where 0 <= p + o < n of x[p + o] reads x[w] for w < n."""
    context = ProofContext()
    n, m = (polynomial.symbol(context, name) for name in "nm")
    p, o = polynomial.fresh_var(n), polynomial.fresh_var(m)
    there = polynomial.atom_poly(p) + polynomial.atom_poly(o)
    powers = ((normal.read(context, "x", (there,)), Fraction(1)),)
    found = _shear(Term(Fraction(1), (p, o), frozenset((ge(there), ge(n - 1 - there))), powers))
    w, kept = found.bound
    assert kept is o
    assert w.extent is n
    at = polynomial.atom_poly(w)
    assert found.powers == ((normal.read(context, "x", (at,)), Fraction(1)),)
    before = at - polynomial.atom_poly(o)
    assert found.guards == {ge(before), ge(n - 1 - before)}


def test_a_sum_that_reads_as_many_variables_stays() -> None:
    context = ProofContext()
    n = polynomial.symbol(context, "n")
    p, o = polynomial.fresh_var(n), polynomial.fresh_var(n)
    there = polynomial.atom_poly(p) + polynomial.atom_poly(o)
    powers = ((normal.read(context, "x", (polynomial.atom_poly(p),)), Fraction(1)),)
    one = Term(Fraction(1), (p, o), frozenset((ge(there), ge(n - 1 - there))), powers)
    assert _shear(one) is one


def test_sums_are_equal_if_their_variables_can_be_paired() -> None:
    """The sum of x[i, j] over i < n, j < m is that over j, i; of x[j, i] it is another one."""
    context = ProofContext()
    facts = without_hypotheses(context)
    n, m = symbol(context, "n"), symbol(context, "m")
    i, j = fresh_var(n), fresh_var(m)

    def read(name: str, *variables: Var) -> normal.Power:
        return normal.read(context, name, tuple(map(atom_poly, variables))), Fraction(1)

    def summed(*powers: normal.Power, bound: tuple[Var, ...], sign: int = 1) -> Term:
        return substitute.close(Term(Fraction(sign), bound, frozenset(), powers))

    whole = summed(read("x", i, j), bound=(i, j))
    assert are_sums_equal(whole, summed(read("x", i, j), bound=(j, i), sign=-1), facts) is True
    for other in (
        summed(read("x", j, i), bound=(i, j)),
        summed(read("y", i, j), bound=(i, j)),
        summed(read("x", i, j), read("y", i), bound=(i, j)),
        summed(read("x", i, j), bound=()),
    ):
        assert are_sums_equal(whole, other, facts) is False
        assert are_sums_equal(other, whole, facts) is False
    assert context.matched_sums == 1


def test_sums_over_ranges_of_other_lengths_differ() -> None:
    """Even if one range is known to be in the other, or to be as long."""
    context = ProofContext()
    n, m = symbol(context, "n"), symbol(context, "m")

    def summed(extent: Poly, *guards: Guard) -> Term:
        v = fresh_var(extent)
        x = normal.read(context, "x", (atom_poly(v),))
        return substitute.close(Term(Fraction(1), (v,), frozenset(guards), ((x, Fraction(1)),)))

    facts = without_hypotheses(context)
    for known, are_equal in (((), False), ((ge(n - m),), False), ((ge(n - m), ge(m - n)), True)):
        inside = facts.with_guards(*known)
        assert are_sums_equal(summed(n), summed(m), inside) is are_equal
        assert are_sums_equal(summed(m), summed(n), inside) is are_equal
    assert not are_sums_equal(summed(n), summed(n + 1), facts)
    assert are_sums_equal(summed(n), summed(n), facts)


def test_polynomials_are_equal_if_neither_is_less() -> None:
    context = ProofContext()
    n, m = symbol(context, "n"), symbol(context, "m")
    facts = without_hypotheses(context)
    assert are_polys_equal(n, n, facts)
    for p, q in ((n, n + 1), (n + 1, n), (n, m)):
        assert not are_polys_equal(p, q, facts)
    assert are_polys_equal(n, m, facts.with_guards(eq(n - m)))
    assert not are_polys_equal(n, m, facts.with_guards(ge(n - m)))
    assert not are_polys_equal(m, n, facts.with_guards(ge(n - m)))


def test_only_a_quotient_by_a_sum_loses_its_own_sum() -> None:
    context = ProofContext()
    facts = without_hypotheses(context)
    n = symbol(context, "n")
    i, k = fresh_var(n), fresh_var(n)
    x = normal.read(context, "x", (atom_poly(i),))
    total = sum_over(power(normal.read(context, "x", (atom_poly(k),))), (k,), facts)
    (plain,) = sum_over(power(x), (i,), facts).terms
    assert _cancel_own_sum(plain, facts) is None
    shares = multiply(power(x), reciprocal(total, facts), facts)
    (share,) = shares.terms
    assert _cancel_own_sum(share, facts) is None
    (whole,) = sum_over(shares, (i,), facts).terms
    assert _cancel_own_sum(whole, facts) == [Term(Fraction(1), (), frozenset(), ())]
