"""Shapes of operands of elementwise operators."""

from random import Random

from superopt.ops import OPS
from superopt.rules.trial.sample.draw import Draw, Style
from superopt.rules.trial.sample.fit_elementwise import fit_broadcast
from superopt.rules.trial.sample.request import FitRequest


def test_an_open_size_is_that_of_the_operand_that_is_not_broadcast() -> None:
    found = set()
    for seed in range(20):
        draw = Draw(Random(seed), Style())
        shapes = ((1,), (3,), (None,))
        request = FitRequest(OPS["Max"], shapes, {}, frozenset(), draw)
        found.add(tuple(fit_broadcast(request)[0]))
    assert found == {((1,), (3,), (3,)), ((1,), (3,), (1,))}
