"""Equations between sizes that follow from others."""

from superopt.te.expr import index
from superopt.te.expr.node import Expr, Size
from superopt.verifier.instances.sizes import State, _rewrite_by_equation

A, B, C, D = (Size(name) for name in "abcd")


def gap(e: Expr) -> index.Poly:
    return index.polynomial(index.as_index(e))


def test_a_product_is_replaced_by_what_it_equals() -> None:
    """From a * b == c follow a * b * d - c * d == 0 and, for the other product, its reverse."""
    found = list(_rewrite_by_equation(gap(A * B - D), gap(A * B - C)))
    assert gap(C - D) in found
    assert all(len(out) <= 2 for out in found)


def test_an_equation_is_not_replaced_by_a_longer_one_or_by_nothing() -> None:
    assert list(_rewrite_by_equation(gap(A - D), gap(A - B * C - C - 1))) == []
    assert list(_rewrite_by_equation(gap(A - B), gap(A - B))) == []
    assert list(_rewrite_by_equation(gap(A - D), gap(A * 2 - C * 3))) == []


def test_a_state_has_made_no_choice_yet() -> None:
    state = State({}, {})
    assert (state.level, state.stretched_count) == (0, 0)
    assert state.with_choice("k", 1, 2).with_choice("l", 3, 1).level == 2
    assert state.with_choice("k", 1).choices == {"k": 1}
    assert state.with_choice("k", 1).level == 0
    assert state.choices == {}
