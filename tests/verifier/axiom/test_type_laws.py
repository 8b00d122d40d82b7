"""Type laws of operators with literal attributes."""

import pytest

from superopt.verifier.axiom.logic import FoTerm, fo, make_tuple, number
from superopt.verifier.axiom.type_laws import attribute_laws

ONE, TWO = (make_tuple((number(n),)) for n in (1, 2))
BOTH = make_tuple((number(1), number(2)))
ANY = fo("f", (fo("?s"),))  # a function of one argument, as a tuple of one item


@pytest.mark.parametrize(
    ("axes", "steps", "count"),
    [(ONE, ONE, 2), (ANY, ONE, 0), (BOTH, ONE, 0), (ONE, ANY, 0), (ONE, TWO, 0)],
)
def test_a_slice_has_laws_for_one_literal_axis(axes: FoTerm, steps: FoTerm, count: int) -> None:
    part = fo("Slice", (fo("?y", (), "f"), ONE, TWO, axes, steps), "f")
    assert len(list(attribute_laws(part))) == count


@pytest.mark.parametrize(("starts", "ends"), [(ANY, TWO), (ONE, ANY)])
def test_a_slice_has_no_laws_for_other_starts_and_ends(starts: FoTerm, ends: FoTerm) -> None:
    part = fo("Slice", (fo("?y", (), "f"), starts, ends, ONE, ONE), "f")
    assert list(attribute_laws(part)) == []


def test_an_unsqueeze_of_one_axis_has_laws_of_its_rank_and_sizes() -> None:
    def laws(*axes: int) -> list[str]:
        x = fo("x", (), "float")
        term = fo("Unsqueeze", (x, make_tuple(map(number, axes))), "float")
        return [repr(conclusion) for _, conclusion, _ in attribute_laws(term)]

    longer = "shape(Unsqueeze(?x, tuple(2)))"
    assert laws(2) == [
        f"==(len({longer}), +(len(shape(?x)), 1))",
        f"==(back({longer}, ?j), if(<(?j, 2), back(shape(?x), ?j),"
        " if(==(?j, 2), 1, back(shape(?x), -(?j, 1)))))",
    ]
    assert laws() == laws(1, 2) == []
