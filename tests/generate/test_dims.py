"""Images and channels of enumerated pairs, as general as both sides take."""

from __future__ import annotations

import pytest

from superopt.generate import dims
from superopt.generate.enumerated import enumerated, read
from superopt.generate.family import Family
from superopt.generate.image_families import borders, strided
from superopt.generate.partial import Partial
from superopt.generate.pattern import Equation, Hole, Made, uses
from superopt.partial.correct.restrict import static_shape

AT = dict(zip(dims.CHANNELS + dims.IMAGES, (2, 3, 5, 7, 11, 13, 17, 19, 4, 6), strict=True))


def place(family: Family, text: str) -> int:
    """Of the use that is written so."""
    return [str(u) for u in family.uses].index(text)


@pytest.fixture(scope="module", params=(borders, strided))
def some(request: pytest.FixtureRequest) -> tuple[Family, list[Partial]]:
    make = request.param
    return make(h=8, w=10, c=3), read(enumerated((make(), 2, 0))).partial


def test_both_sides_take_them(some: tuple[Family, list[Partial]]) -> None:
    family, pairs = some
    general = 0
    for p in pairs:
        try:
            found = dims.dims(p.sides, family)
        except dims.Unlike:
            continue
        general += len({d for two in found for d in two if isinstance(d, str)}) > 2
        inputs = dims.given(p.sides, family, found, AT)
        left, right = (dims.value(s, family, inputs) for s in (p.sides.left, p.sides.right))
        assert static_shape(left) == static_shape(right)
    assert general > 2


def test_channels_of_a_chain() -> None:
    family = strided(h=8, w=10, c=3)
    first, second = (
        place(family, f"Conv strides=(1, 1) dilations=(1, 1) group=1 pads={pads}")
        for pads in ("(1, 1, 1, 1)", "(1, 0, 1, 0)")
    )
    chain = Made(second, (Made(first, (Hole(0), Hole(1))), Hole(2)))
    e = Equation(chain, chain, ("x", "k", "v"))
    assert dims.dims(e, family) == [("n", "c"), ("o", "c"), ("q", "o")]
    turned = Made(first, (Made(second, (Hole(0), Hole(2))), Hole(1)))
    found = dims.dims(Equation(chain, turned, e.inputs), family)
    assert found == [("n", "c"), ("c", "c"), ("c", "c")]


def test_images_are_counted_where_they_are_joined_or_moved() -> None:
    family = borders(h=8, w=10, c=3)
    joined = Made(place(family, "Concat axis=0"), (Hole(0), Hole(1)))
    found = dims.dims(Equation(joined, joined, ("x", "y")), family)
    assert found == [(1, "c"), (1, "c")]
    kernels = Equation(joined, joined, ("k", "k"))
    with pytest.raises(dims.Unlike):  # of kernels as images it would be a sum
        dims.dims(kernels, family)
    assert [*uses(joined)] == [joined.use]
