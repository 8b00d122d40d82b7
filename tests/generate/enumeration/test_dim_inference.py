"""Images and channels of enumerated pairs, as general as both sides take."""

from __future__ import annotations

import pytest

from superopt.generate.enumeration import dim_inference
from superopt.generate.enumeration.partial_equality import PartialEquality
from superopt.generate.enumeration.pattern import (
    Equation,
    PatternCall,
    PatternVariable,
    use_numbers,
)
from superopt.generate.enumeration.serialize import enumerate_family, read_enumeration
from superopt.generate.families.family import Family
from superopt.generate.families.images import borders, strided
from superopt.partial.correct.restrict import static_shape

AT = dict(
    zip(
        dim_inference.CHANNEL_NAMES + dim_inference.IMAGE_NAMES,
        (2, 3, 5, 7, 11, 13, 17, 19, 4, 6),
        strict=True,
    )
)


def place(family: Family, text: str) -> int:
    """Of the use that is written so."""
    return [str(u) for u in family.uses].index(text)


@pytest.fixture(scope="module", params=(borders, strided))
def some(request: pytest.FixtureRequest) -> tuple[Family, list[PartialEquality]]:
    make = request.param
    return make(h=8, w=10, c=3), read_enumeration(enumerate_family((make(), 2, 0))).partial


@pytest.mark.one_in(2)
def test_both_sides_take_them(some: tuple[Family, list[PartialEquality]]) -> None:
    family, pairs = some
    general = 0
    for p in pairs:
        try:
            found = dim_inference.infer_dims(p.equation, family)
        except dim_inference.DimsNotGeneral:
            continue
        general += len({d for two in found for d in two if isinstance(d, str)}) > 2
        inputs = dim_inference.graph_inputs(p.equation, family, found, AT)
        left, right = (
            dim_inference.term_value(s, family, inputs) for s in (p.equation.left, p.equation.right)
        )
        assert static_shape(left) == static_shape(right)
    assert general > 2


def test_channels_of_a_chain() -> None:
    family = strided(h=8, w=10, c=3)
    first, second = (
        place(family, f"Conv strides=(1, 1) dilations=(1, 1) group=1 pads={pads}")
        for pads in ("(1, 1, 1, 1)", "(1, 0, 1, 0)")
    )
    chain = PatternCall(
        second, (PatternCall(first, (PatternVariable(0), PatternVariable(1))), PatternVariable(2))
    )
    e = Equation(chain, chain, ("x", "k", "v"))
    assert dim_inference.infer_dims(e, family) == [("n", "c"), ("o", "c"), ("q", "o")]
    turned = PatternCall(
        first, (PatternCall(second, (PatternVariable(0), PatternVariable(2))), PatternVariable(1))
    )
    found = dim_inference.infer_dims(Equation(chain, turned, e.inputs), family)
    assert found == [("n", "c"), ("c", "c"), ("c", "c")]


def test_images_are_counted_where_they_are_joined_or_moved() -> None:
    family = borders(h=8, w=10, c=3)
    joined = PatternCall(place(family, "Concat axis=0"), (PatternVariable(0), PatternVariable(1)))
    found = dim_inference.infer_dims(Equation(joined, joined, ("x", "y")), family)
    assert found == [(1, "c"), (1, "c")]
    kernels = Equation(joined, joined, ("k", "k"))
    with pytest.raises(dim_inference.DimsNotGeneral):  # of kernels as images it would be a sum
        dim_inference.infer_dims(kernels, family)
    assert [*use_numbers(joined)] == [joined.use]
