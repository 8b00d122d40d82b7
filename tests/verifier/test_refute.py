"""Numbers and sizes at which a wrong rule is refuted."""

from itertools import islice

import numpy as np
import pytest

from superopt.te.expr.dtype import BOOL, F16, F64, I64, DType
from superopt.te.expr.tensor import Tensor
from superopt.verifier.refute import _assignments, _draw_array


@pytest.mark.parametrize(
    ("dtype", "draw", "values"),
    [
        (F64, "whole", range(-3, 4)),
        (I64, "whole", range(-3, 4)),
        (F64, "odd", (-3, -1, 1, 3)),
        (F64, "positive", [n / 4 for n in range(1, 9)]),
        (I64, "positive", range(1, 9)),
        (BOOL, "odd", (False, True)),
    ],
)
def test_elements_are_drawn_from_these(dtype: DType, draw: str, values: list[float]) -> None:
    rng = np.random.default_rng(0)
    found = _draw_array(Tensor("x", dtype, (20, 20)), {}, draw, rng)
    assert found.shape == (20, 20)
    assert set(found.reshape(-1).tolist()) == set(values)


def test_flags_are_drawn_evenly() -> None:
    found = _draw_array(Tensor("x", BOOL, (2000,)), {}, "normal", np.random.default_rng(0))
    assert 0.45 < found.mean() < 0.55


def test_floats_are_drawn_in_float64_with_a_deviation_of_2() -> None:
    found = _draw_array(Tensor("x", F16, (2000,)), {}, "normal", np.random.default_rng(0))
    assert found.dtype == np.float64
    assert 1.8 < found.std() < 2.2
    assert abs(found.mean()) < 0.2


def test_few_sizes_are_all_combinations_the_smallest_first() -> None:
    found = [tuple(sizes.values()) for sizes in islice(_assignments(["a", "b"], 0), 16)]
    assert sorted(found) == [(a, b) for a in range(1, 5) for b in range(1, 5)]
    assert [sum(sizes) for sizes in found] == sorted(map(sum, found))
    more = list(islice(_assignments(["a", "b"], 0), 16, 200))
    assert {n for sizes in more for n in sizes.values()} == {1, 2, 3, 4, 5, 6}
    assert list(_assignments([], 0)) == [{}]


def test_many_sizes_are_drawn_up_to_several_bounds() -> None:
    names = [f"n{k}" for k in range(40)]
    found = list(islice(_assignments(names, 0), 100))
    assert {max(sizes.values()) for sizes in found} == {2, 3, 4, 6}
    assert {min(sizes.values()) for sizes in found} == {1}
    for count in (6, 7):
        first = next(_assignments(names[:count], 0))
        assert (set(first.values()) == {1}) is (count == 6)
