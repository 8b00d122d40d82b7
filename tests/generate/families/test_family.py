"""Which operands a use takes."""

import pytest

from superopt.generate.families.family import (
    ANY_SIZE,
    NO_FURTHER_DIMS,
    SIZE_ABOVE_1,
    OperatorUse,
    Shape,
    operator_use,
    with_operand_suffixes,
)
from superopt.generate.families.pass_through import edges, rows

CUT = next(u for u in edges().uses if u.must_cut_within and dict(u.attrs)["ends"] == (5,))


@pytest.mark.parametrize(
    ("shape", "taken"),
    [
        ((3, 7), True),
        ((3, 5), True),
        ((3, 4), False),  # it would end beyond it
        ((7,), False),  # no such axis
    ],
)
def test_a_cut_ends_within_its_operand(shape: Shape, taken: bool) -> None:
    assert dict(CUT.attrs)["starts"] == (1,)
    assert CUT.accepts([shape]) == taken


def test_a_cut_leaves_something_out() -> None:
    (whole,) = [u for u in edges().uses if u.must_cut_within and dict(u.attrs)["starts"] == (0,)]
    assert dict(whole.attrs)["ends"] == (3,)
    assert whole.accepts([(4, 4)])
    assert not whole.accepts([(3, 4)])


def test_only_slices_along_one_axis_are_cuts() -> None:
    two = OperatorUse(
        "Slice", (("axes", (0, 1)), ("starts", (0, 0)), ("ends", (1, 1))), 1, must_cut_within=True
    )
    with pytest.raises(ValueError, match="not a Slice along one axis"):
        two.accepts([(2, 2)])


@pytest.mark.parametrize(
    ("last", "shape", "taken"),
    [
        ((3, 4), (2, 3, 4), True),
        ((NO_FURTHER_DIMS, 3, 4), (2, 3, 4), False),
        ((NO_FURTHER_DIMS, 3, 4), (3, 4), True),
        ((NO_FURTHER_DIMS, 3, 4), (4,), False),
        ((NO_FURTHER_DIMS, 3, 4), (3, 5), False),
        ((NO_FURTHER_DIMS, SIZE_ABOVE_1), (1,), False),
        ((NO_FURTHER_DIMS, ANY_SIZE), (1,), True),
    ],
)
def test_the_last_dims(last: Shape, shape: Shape, taken: bool) -> None:
    assert with_operand_suffixes(operator_use("Neg", 1), last).accepts([shape]) == taken


def test_rows_alone_are_normalised() -> None:
    """Of an axis more in front, axis 2 is not the last."""
    (layer,) = [u for u in rows().uses if u.name == "LayerNormalization"]
    assert layer.accepts([(5, 4, 3), (3,)])
    assert not layer.accepts([(1, 5, 4, 3), (3,)])
