"""Chosen operands and attributes of operators that move elements fit what is known."""

import math
from random import Random

from superopt.ops import OPS
from superopt.rules.trial.sample.draw import Draw, Style
from superopt.rules.trial.sample.fit_movement import _draw_reshape, fit_expand
from superopt.rules.trial.sample.request import FitRequest

SEEDS = range(60)


def test_a_reshape_has_as_many_elements() -> None:
    found = {_draw_reshape((2, 3, 5), Draw(Random(seed), Style())) for seed in SEEDS}
    assert {math.prod(shape) for shape in found} == {30}
    assert (6, 5) in found


def test_an_expanded_operand_keeps_its_known_sizes() -> None:
    sizes = set()
    for seed in SEEDS:
        draw = Draw(Random(seed), Style())
        request = FitRequest(OPS["Expand"], ((3, None),), {}, frozenset(("shape",)), draw)
        ((shape,), _) = fit_expand(request)
        assert isinstance(shape, tuple)
        assert len(shape) == 2
        assert shape[0] == 3
        sizes.add(shape[1])
    assert len(sizes) > 2
