"""What vectors of a tile are made of: turned in registers, summed, none where one is no number."""

import numpy as np
import pytest

from superopt.kernels.algorithms.cpu.row_kernels import lane_reduction
from superopt.kernels.loops.elementwise_schedule import transpose_schedule
from superopt.kernels.loops.loop_transforms import reduction
from superopt.kernels.loops.lower import lower_kernel
from superopt.kernels.loops.schedule import Schedule
from superopt.kernels.runtime.cpu import load_kernel
from superopt.te.expr.dtype import F32
from superopt.te.expr.tensor import Tensor, compute, reduce_max, reduce_sum


def run(t: Tensor, how: Schedule, *given: tuple[Tensor, np.ndarray]) -> np.ndarray:
    out = np.zeros([n for n in t.shape if isinstance(n, int)], np.float32)
    kernel = lower_kernel("k", [a for a, _ in given], [t], {t: how})
    load_kernel(kernel)(*(x for _, x in given), out)
    return out


@pytest.mark.one_in(2)
@pytest.mark.parametrize("high", [4, 5, 7, 8, 12, 14, 16, 19])
@pytest.mark.parametrize("wide", [2, 3, 8, 12, 16, 40])
def test_tiles_are_transposed(high: int, wide: int) -> None:
    a = Tensor("a", F32, (wide, high))
    t = compute((high, wide), lambda i, j: a[j, i] * 2)
    how = transpose_schedule(t, {}, 16)
    assert how is not None
    x = np.random.default_rng(0).standard_normal((wide, high)).astype(np.float32)
    np.testing.assert_array_equal(run(t, how, (a, x)), x.T * 2)


SIZES = [
    (1, 1),
    (1, 5),
    (3, 16),
    (1, 31),
    (7, 7),
    (2, 255),
    (16, 16),
    (23, 25),
    (56, 56),
    (3, 1000),
]


@pytest.mark.parametrize("size", SIZES)
def test_sums_over_axes_that_lie_in_a_row(size: tuple[int, int]) -> None:
    a = Tensor("a", F32, (3, *size))
    t = compute((3,), lambda i: reduce_sum(size, lambda j, k: a[i, j, k] * a[i, j, k]))
    found = reduction(t)
    assert found is not None
    x = np.random.default_rng(0).integers(-3, 4, (3, *size)).astype(np.float32)
    got = run(t, tuple(lane_reduction(found)), (a, x))
    np.testing.assert_array_equal(got, (x * x).sum((1, 2)))


@pytest.mark.one_in(8)
@pytest.mark.parametrize("size", SIZES)
def test_the_largest_of_all_is_none_where_one_is(size: tuple[int, int]) -> None:
    a = Tensor("a", F32, (3, *size))
    t = compute((3,), lambda i: reduce_max(size, lambda j, k: a[i, j, k]))
    found = reduction(t)
    assert found is not None
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, *size)).astype(np.float32) - 5
    for at in {0, x[0].size // 2, x[0].size - 1, *rng.integers(0, x[0].size, 20).tolist()}:
        y = x.copy()
        y[1].ravel()[at] = np.nan
        y[2].ravel()[at] = 1
        got = run(t, tuple(lane_reduction(found)), (a, y))
        np.testing.assert_array_equal(got, y.max((1, 2)))
