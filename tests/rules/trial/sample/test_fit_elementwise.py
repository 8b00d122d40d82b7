"""Shapes of operands of elementwise operators."""

from random import Random

import numpy as np

from superopt.rules.trial.sample.draw import Draw, PartialShape, Shape, Style
from superopt.rules.trial.sample.fit_elementwise import broadcastable_shape
from superopt.rules.trial.sample.request import ABSENT
from tests.support.rules.fits import draws, operand_ranks


def shapes_for(shape: PartialShape, target: Shape) -> list[Shape]:
    return [broadcastable_shape(shape, target, Draw(Random(n), Style())) for n in range(400)]


def test_an_open_size_is_that_of_the_operand_that_is_not_broadcast() -> None:
    found = {operands for operands, _ in draws("Max", (1,), (3,), (None,))}
    assert found == {((1,), (3,), (3,)), ((1,), (3,), (1,))}


def test_an_axis_of_size_1_stays_or_grows() -> None:
    sizes = [y[0] for (_, y), _ in draws("Add", (1,), (None,), count=400)]
    assert set(sizes) == set(range(1, 8))
    assert 0.55 < sizes.count(1) / len(sizes) < 0.75


def test_operands_broadcast_in_every_way() -> None:
    found = draws("Add", None, None, count=400)
    assert operand_ranks(found) == operand_ranks(found, 1) == {0, 1, 2, 3, 4}
    shapes = [operands for operands, _ in found]
    assert all(len(np.broadcast_shapes(*s)) <= 4 for s in shapes)
    assert 0.15 < sum(x == y for x, y in shapes) / len(shapes) < 0.45
    for least, most in (((2, 3, 4), 3), ((2,), 4)):
        ranks = operand_ranks(draws("Add", least, None), 1)
        assert ranks == set(range(most + 1 if len(least) > 1 else 2)), least
    assert operand_ranks(draws("Add", (), None), 1) == {0, 1, 2, 3, 4}
    assert operand_ranks(draws("Where", ABSENT, (2, 3), None), 2) == {0, 1, 2}
    assert {len(y) for (_, y), _ in draws("Add", (None, None), (None,) * 3)} == {3}


def test_shapes_that_broadcast_are_equal_shorter_of_ones_of_one_axis_and_scalars() -> None:
    found = shapes_for(None, (5, 6, 7))
    assert set(found) == {
        (5, 6, 7), (6, 7), (7,), (), (1, 6, 7), (5, 1, 7), (5, 6, 1), (1, 1, 7), (1, 6, 1),
        (5, 1, 1), (1, 1, 1), (6, 1),
    }  # fmt: skip
    assert 0.4 < found.count((5, 6, 7)) / len(found) < 0.6
    assert set(shapes_for(None, ())) == {()}


def test_a_known_shape_keeps_its_sizes() -> None:
    assert set(shapes_for((5, None), (5, 6))) == {(5, 6), (5, 1)}
    assert 0.1 < shapes_for((5, None), (5, 6)).count((5, 1)) / 400 < 0.2
    assert set(shapes_for((None,), (5, 6))) == {(6,), (1,)}
    assert set(shapes_for((), (5, 6))) == set(shapes_for(ABSENT, (5, 6))) == {()}


def test_the_scalars_of_a_clip_the_slope_of_a_prelu_and_equal_operands() -> None:
    found = draws("Clip", None, None, (None,))
    assert operand_ranks(found) == {1, 2, 3, 4}
    assert operand_ranks(found, 1) == {0}
    assert operand_ranks(found, 2) == {1}
    assert {x for (x, *_), _ in draws("Clip", (5, 6), None, ())} == {(5, 6)}
    assert operand_ranks(draws("PRelu", None, None)) == {1, 2, 3, 4}
    assert {slope for (_, slope), _ in draws("PRelu", (5, 6), None)} == {
        (5, 6), (6,), (), (1, 6), (5, 1), (1, 1),
    }  # fmt: skip
    same = draws("SwiGLU", None, None)
    assert all(x == y for (x, y), _ in same)
    assert operand_ranks(same) == {1, 2, 3, 4}
    assert {len(x) for (x, _), _ in draws("SwiGLU", (None,) * 5, None)} == {5}
    assert {y for (_, y), _ in draws("SwiGLU", (5, 6), None)} == {(5, 6)}
