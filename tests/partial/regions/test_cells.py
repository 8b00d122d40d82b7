"""Cells of which one element tells of all."""

from __future__ import annotations

import numpy as np
import pytest

from superopt.ir import graph
from superopt.partial.regions import find
from superopt.partial.regions.cells import find_cells
from superopt.partial.regions.composition import Composer
from superopt.te.analysis.inline import substitute_axes
from tests.support.partial.regions import apply, exact, given_

X, Y, K = given_("x", 1, 2, 9, 9), given_("y", 1, 2, 9, 9), given_("k", 2, 2, 3, 3)
PADS = (1, 1, 1, 1)


def conv(x: graph.Value) -> graph.Value:
    return apply("Conv", x, K, pads=PADS)


def pool(x: graph.Value) -> graph.Value:
    return apply("AveragePool", x, kernel_shape=(3, 3), pads=PADS)


def turned(x: graph.Value) -> graph.Value:
    return apply("Transpose", x, perm=(0, 1, 3, 2))


def told(a: graph.Value, b: graph.Value) -> np.ndarray:
    both = Composer()
    one, other = find._as_computed(both.tensor(a)), find._as_computed(both.tensor(b))
    assert one.body is not None
    assert other.body is not None
    some = [one.body, substitute_axes(other.body, dict(zip(other.axes, one.axes, strict=True)))]
    return find._translated_axes(one.axes, some, find_cells(one.axes, some))


def joined(*some: graph.Value, axis: int = 3) -> graph.Value:
    return apply("Concat", *some, axis=axis)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (X, Y),
        (joined(conv(X), conv(Y)), conv(joined(X, Y))),
        (apply("Conv", X, K, strides=(2, 2)), apply("Conv", Y, K, strides=(2, 2))),
        (apply("Slice", X, starts=(8,), ends=(-10,), axes=(3,), steps=(-1,)),
         apply("Slice", X, starts=(8,), ends=(-10,), axes=(3,), steps=(-1,))),
    ],
)  # fmt: skip
def test_what_moves_together(a: graph.Value, b: graph.Value) -> None:
    assert told(a, b).all()


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (X, turned(X)),
        (pool(X), turned(pool(X))),
        (X, apply("Slice", X, starts=(8,), ends=(-10,), axes=(3,), steps=(-1,))),
    ],
)
def test_what_meets_somewhere(a: graph.Value, b: graph.Value) -> None:
    assert not told(a, b).all()
    exact(a, b)


def test_pools_of_large_images_are_compared_at_few_elements() -> None:
    """Of two side by side by 7 x 7 only 4,096 wrong elements were compared, which took 0.2 s, and
    it was not known whether the others are wrong."""
    x, y = given_("x", 1, 64, 512, 512), given_("y", 1, 64, 512, 512)
    a, b = (apply("MaxPool", v, kernel_shape=(7, 7), pads=(3, 3, 3, 3)) for v in (x, y))
    whole = apply("MaxPool", joined(x, y), kernel_shape=(7, 7), pads=(3, 3, 3, 3))
    found = find.find_regions(joined(a, b), whole)
    assert found.is_exact
    assert found.compared_elements <= 2 * 128
    assert [str(s) for s in found.different[0]] == ["0", "0:64", "0:512", "509:515"]


@pytest.mark.parametrize("op", ["AveragePool", "MaxPool"])
def test_parts_of_one_image(op: str) -> None:
    """Where both read the same elements, but fewer of them."""
    x = given_("x", 1, 16, 64, 64)

    def window(v: graph.Value) -> graph.Value:
        return apply(op, v, kernel_shape=(5, 5), pads=(2, 2, 2, 2))

    halves = (apply("Slice", x, starts=(a,), ends=(a + 32,), axes=(3,)) for a in (0, 32))
    found = find.find_regions(window(x), joined(*map(window, halves)))
    assert found.is_exact
    assert [str(s) for s in found.different[0]] == ["0", "0:16", "0:64", "30:34"]


def test_every_element_by_a_few_of_each_cell() -> None:
    """As if these results were too large to compare each element."""
    rows = apply("Pad", X, pads=(0, 0, 1, 0, 0, 0, 1, 0))
    for a, b in (
        (joined(conv(X), conv(Y)), conv(joined(X, Y))),
        (conv(X), apply("Conv", rows, K, pads=(0, 1, 0, 1))),
        (conv(X), turned(conv(turned(X)))),
    ):
        few, every = find.find_regions(a, b, max_exhaustive=0), find.find_regions(a, b)
        np.testing.assert_array_equal(few.mask(), every.mask())


def test_what_is_put_between_elements_is_cut_where_it_is() -> None:
    """A quotient of a place in a sum only does not take each element for a cell."""
    k = given_("k", 2, 3, 4, 4)

    def spread(v: graph.Value) -> graph.Value:
        return apply("ConvTranspose", v, k, strides=(2, 2), pads=PADS)

    x, y = given_("x", 1, 2, 28, 28), given_("y", 1, 2, 28, 28)
    found = find.find_regions(joined(spread(x), spread(y)), spread(joined(x, y)))
    assert found.is_exact
    assert found.compared_elements < 1000
    assert [str(s) for s in found.different[0]] == ["0", "0:3", "0:56", "55:57"]


def test_along_one_axis_and_not_along_another() -> None:
    """Channels of depth to space are others, places the same: 80 elements tell of 50176."""
    x = given_("x", 1, 64, 28, 28)
    a, b = (apply("DepthToSpace", x, blocksize=4, mode=m) for m in ("DCR", "CRD"))
    found = find.find_regions(a, b)
    assert found.is_exact
    assert found.compared_elements < 200
    small = given_("x", 1, 64, 2, 3)
    exact(*(apply("DepthToSpace", small, blocksize=4, mode=m) for m in ("DCR", "CRD")))
    exact(X, apply("Slice", X, starts=(8,), ends=(-10,), axes=(3,), steps=(-1,)))
