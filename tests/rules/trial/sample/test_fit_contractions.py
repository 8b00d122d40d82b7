"""Shapes of operands of contractions."""

from random import Random

import pytest

from superopt.ops import OPS
from superopt.rules.trial.sample.draw import Draw, PartialShape, Style
from superopt.rules.trial.sample.fit_contractions import _known_size, fit_matmul
from superopt.rules.trial.sample.request import FitRequest


@pytest.mark.parametrize(
    ("shape", "axis", "size"),
    [
        ((2, None, 3), -1, 3),
        ((2, None, 3), 0, 2),
        ((2, None, 3), 1, None),
        ((2,), 1, None),
        ((2,), -2, None),
        ((2, 3), -2, 2),
        (None, 0, None),
    ],
)
def test_known_size(shape: PartialShape, axis: int, size: int | None) -> None:
    assert _known_size(shape, axis) == size


def test_the_inner_size_of_a_product_is_that_of_the_known_operand() -> None:
    draw = Draw(Random(1), Style())
    request = FitRequest(OPS["MatMul"], ((4, 9), (None, 5)), {}, frozenset(), draw)
    assert fit_matmul(request) == ([(4, 9), (9, 5)], {})
