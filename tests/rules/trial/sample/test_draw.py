"""Seeded choices."""

from random import Random

import pytest

from superopt.rules.trial.sample.draw import Draw, Style


@pytest.mark.parametrize(("low", "high"), [(0, 4), (2, 4), (0, 2), (2, 2)])
def test_the_wanted_rank_is_drawn_if_it_is_allowed(low: int, high: int) -> None:
    draws = (Draw(Random(seed), Style(rank=2)) for seed in range(8))
    assert {d.rank(low, high) for d in draws} == {2}
