"""Maxima of equal values are equal, but terms are more than their maxima."""

from fractions import Fraction

from superopt.verifier.context import ProofContext
from superopt.verifier.elements import normal, substitute
from superopt.verifier.elements.normal import Piece, Term
from superopt.verifier.equality.max_matching import (
    _differ_in_equal_maxima,
    absorb_pieces,
    cancel_equal_maxima,
)
from superopt.verifier.poly import polynomial
from superopt.verifier.poly.facts import Guard, ge, without_hypotheses
from superopt.verifier.poly.polynomial import Poly

CONTEXT = ProofContext()
FACTS = without_hypotheses(CONTEXT)
N = polynomial.symbol(CONTEXT, "n")
K = polynomial.fresh_var(N)


def read(index: Poly) -> normal.NF:
    return normal.factor_power(normal.read(CONTEXT, "x", (index,)))


EACH = substitute.close_piece(Piece((K,), frozenset(), read(polynomial.atom_poly(K))))
FIRST = Piece((), frozenset(), read(polynomial.const(CONTEXT, 0)))
ALL, ALL_AND_FIRST = (normal.maximum(frozenset(s)) for s in ((EACH,), (EACH, FIRST)))
GUARD = frozenset((ge(polynomial.symbol(CONTEXT, "i") - 2),))


def test_equal_maxima_cancel_under_equal_guards_only() -> None:
    def term(f: normal.Factor, sign: int, guards: frozenset[Guard] = frozenset()) -> Term:
        return Term(Fraction(sign), (), guards, ((f, Fraction(1)),))

    for guards in (frozenset[Guard](), GUARD):
        pair = term(ALL, 1, guards), term(ALL_AND_FIRST, -1, guards)
        assert _differ_in_equal_maxima(*pair, FACTS)
        assert not cancel_equal_maxima(normal.from_terms(CONTEXT, pair), FACTS).terms
    pair = term(ALL, 1), term(ALL_AND_FIRST, -1, GUARD)
    assert not _differ_in_equal_maxima(*pair, FACTS)
    difference = normal.from_terms(CONTEXT, pair)
    assert cancel_equal_maxima(difference, FACTS) is difference
    only = normal.maximum(frozenset((FIRST,)))
    assert not _differ_in_equal_maxima(term(ALL, 1), term(only, -1), FACTS)


def test_sums_of_equal_maxima_do_not_cancel_over_different_ranges() -> None:
    v = polynomial.bound_var(ALL_AND_FIRST.level + 1, N)
    plain = Term(Fraction(1), (), frozenset(), ((ALL, Fraction(1)),))
    summed = Term(Fraction(-1), (v,), frozenset(), ((ALL_AND_FIRST, Fraction(1)),))
    assert not _differ_in_equal_maxima(plain, summed, FACTS)
    assert not _differ_in_equal_maxima(summed, plain, FACTS)


def test_a_piece_is_absorbed_by_one_that_has_its_values() -> None:
    assert absorb_pieces([FIRST, EACH], FACTS) == [EACH]
    assert absorb_pieces([EACH, FIRST], FACTS) == [EACH]
    assert absorb_pieces([FIRST], FACTS) == [FIRST]
    assert absorb_pieces([], FACTS) == []
