"""Shapes and attributes of contractions and pools."""

from random import Random

import pytest

from superopt.ops import OPS
from superopt.rules.trial.sample.draw import Draw, PartialShape, Style
from superopt.rules.trial.sample.fit_contractions import _known_size, fit_matmul, fit_pool
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


def test_flags_of_a_pool_are_0_or_1() -> None:
    keys = ("ceil_mode", "count_include_pad")
    found = set()
    for seed in range(20):
        draw = Draw(Random(seed), Style())
        request = FitRequest(OPS["AveragePool"], (None,), {}, frozenset(keys), draw)
        _, attrs = fit_pool(request)
        found |= {(k, attrs[k]) for k in keys}
    assert found == {(k, n) for k in keys for n in (0, 1)}
