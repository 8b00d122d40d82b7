"""Terms in Z3 mean what they say, and only equations that Z3 can apply are assumed."""

import pytest
import z3

from superopt.verifier.axiom.logic import TRUTH_SORT, Clause, FoTerm, fo, number
from superopt.verifier.axiom.theory import Theory, Z3Terms

SIX, SEVEN = number(6), number(7)
TRUE = fo("==", (SIX, SIX), TRUTH_SORT)
FALSE = fo("==", (SIX, SEVEN), TRUTH_SORT)


@pytest.mark.parametrize(
    ("fn", "args", "expected"),
    [
        ("+", (SIX, SEVEN), 13),
        ("-", (SIX, SEVEN), -1),
        ("*", (SIX, SEVEN), 42),
        ("max", (SIX, SEVEN), 7),
        ("max", (SEVEN, SIX), 7),
        ("if", (TRUE, SIX, SEVEN), 6),
        ("if", (FALSE, SIX, SEVEN), 7),
    ],
)
def test_arithmetic_of_values(fn: str, args: tuple[FoTerm, ...], expected: int) -> None:
    assert z3.simplify(Z3Terms().make(fo(fn, args))).as_long() == expected


@pytest.mark.parametrize(
    ("fn", "args", "expected"),
    [
        ("==", (SIX, SEVEN), False),
        ("<", (SIX, SEVEN), True),
        ("<", (SEVEN, SIX), False),
        ("<", (SIX, SIX), False),
        ("<=", (SIX, SIX), True),
        ("<=", (SEVEN, SIX), False),
        ("not", (TRUE,), False),
        ("or", (FALSE, TRUE), True),
        ("or", (FALSE, FALSE), False),
        ("and", (TRUE, FALSE), False),
        ("and", (TRUE, TRUE), True),
    ],
)
def test_truth_of_formulas(fn: str, args: tuple[FoTerm, ...], expected: bool) -> None:
    assert z3.is_true(z3.simplify(Z3Terms().make(fo(fn, args, TRUTH_SORT)))) == expected


def test_only_equations_whose_left_side_has_all_variables_are_assumed() -> None:
    x, y = (fo(name, (), "float") for name in ("?x", "?y"))
    twice, both = fo("Add", (x, x), "float"), fo("Add", (x, y), "float")
    for sides, is_assumed in (((twice, x), True), ((x, twice), False), ((twice, both), False)):
        theory = Theory()
        theory.assume(Clause("added", (), (sides,)))
        assert any("added" in str(a) for a in theory.solver.assertions()) == is_assumed
