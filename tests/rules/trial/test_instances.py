"""Shapes near those of an instance."""

from superopt.rules.trial.instances import _neighbor_shapes


def test_neighbor_shapes_change_one_axis_or_the_rank() -> None:
    assert list(_neighbor_shapes((2, 1))) == [(1, 1), (3, 1), (2, 2), (1, 2, 1)]
    assert list(_neighbor_shapes((1,))) == [(2,), (1, 1), ()]
