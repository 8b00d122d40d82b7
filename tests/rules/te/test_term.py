"""Names that stand for terms."""

from superopt.rules.te.term import (
    AxisTerm,
    Element,
    Fold,
    Lit,
    Rest,
    Store,
    Var,
    _substitute_names,
)

N, X, NUMBER = Var("n"), Var("x"), Lit(4)


def test_names_are_replaced_in_extents_bodies_and_indices() -> None:
    names = {"n": NUMBER}
    axes, known = (AxisTerm("k", N, True), AxisTerm("l"), Rest()), AxisTerm("k", NUMBER, True)
    wanted = known, AxisTerm("l"), Rest()
    assert _substitute_names(Fold("sum", axes, N), names) == Fold("sum", wanted, NUMBER)
    assert _substitute_names(Store("y", axes, X, (N,)), names) == Store("y", wanted, X, (NUMBER,))
    assert _substitute_names(Element("x", (N, X)), names) == Element("x", (NUMBER, X))
