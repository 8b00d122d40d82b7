"""Shapes of operands that nothing else determines."""

from random import Random

import pytest

from superopt.rules.lang.rule import parse_rules
from superopt.rules.trial.sample.draw import Draw, PartialShape, Shape, Style
from superopt.rules.trial.sample.parameters import Parameters


def reused(shapes: tuple[PartialShape, ...], past: list[Shape]) -> list[tuple[PartialShape, ...]]:
    (rule,) = parse_rules("r(x: f, y: f): Add(x, y) => Add(y, x)")
    return [
        Parameters(rule, Draw(Random(seed), Style()), past_shapes=past).reuse_past_shape(shapes, 0)
        for seed in range(32)
    ]


@pytest.mark.parametrize(
    ("shapes", "past"),
    [(((5,), None), [(2, 3)]), ((None, (5,)), [(2, 3)]), ((None, None), [])],
    ids=["is known", "depends on another", "no past shape"],
)
def test_a_shape_stays(shapes: tuple[PartialShape, ...], past: list[Shape]) -> None:
    assert set(reused(shapes, past)) == {shapes}


def test_an_unknown_shape_is_often_a_past_one() -> None:
    found = reused((None, None), [(2, 3)])
    assert found.count(((2, 3), None)) > 4
    assert all(shape is None or len(shape) == 2 for shape, _ in found)
