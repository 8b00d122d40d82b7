"""Sums within sums as tensors: the same values, of fewer terms."""

from __future__ import annotations

import numpy as np
import pytest

from superopt.ir import graph as g
from superopt.partial.composed import Composed
from superopt.partial.extremes import numbers_of
from superopt.partial.points import Points, terms
from superopt.partial.regions import regions
from superopt.partial.shared import shared
from superopt.te.node import Load
from superopt.te.walk import parts
from tests.partial.test_regions import apply, given_

X, K, Q = given_("x", 1, 3, 6, 7), given_("k", 3, 3, 3, 3), given_("q", 3, 3, 3, 3)
PADS = (1, 1, 1, 1)


def conv(x: g.Value, k: g.Value, **attrs: object) -> g.Value:
    return apply("Conv", x, k, **{"pads": PADS, **attrs})


def pool(x: g.Value, n: int = 3) -> g.Value:
    return apply("MaxPool", x, kernel_shape=(n, n), pads=(n // 2,) * 4)


def mean(x: g.Value) -> g.Value:
    return apply("AveragePool", x, kernel_shape=(3, 3), pads=PADS)


@pytest.mark.parametrize(
    "v",
    [
        conv(conv(X, K), Q),
        conv(conv(X, K, strides=(2, 1)), Q, dilations=(1, 2), pads=(1, 2, 1, 2)),
        pool(pool(pool(X))),
        pool(apply("Relu", conv(X, K))),
        mean(mean(X)),
        apply("Softmax", X, axis=1),
        conv(apply("Concat", conv(X, K), pool(X), axis=3), Q),
    ],
)
@pytest.mark.parametrize("sets", [False, True])
def test_the_same_values(v: g.Value, sets: bool) -> None:
    t = Composed().tensor(v)
    assert t.body is not None
    (own,) = shared([t.body])
    assert any(isinstance(e, Load) and e.tensor.body for e in parts(own))
    assert terms(own) < terms(t.body)
    shape = [int(str(d)) for d in t.shape]
    places = np.array(list(np.ndindex(*shape)))
    points = Points(3, numbers=numbers_of([t.body]) if sets else None)
    np.testing.assert_array_equal(
        points.values(own, t.axes, places), points.values(t.body, t.axes, places)
    )


def test_windows_over_windows_are_compared_by_few_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three pools of 5 x 5 have 15,625 terms, of 169 elements; two images of them side by side took
    longer than 8 s."""
    read = []
    drawing = Points.drawing

    def counted(self: Points, t: object, where: np.ndarray) -> np.ndarray:
        read.append(where.size)
        return drawing(self, t, where)  # type: ignore[arg-type]

    monkeypatch.setattr(Points, "drawing", counted)
    x, y = given_("x", 1, 8, 20, 20), given_("y", 1, 8, 20, 20)

    def three(v: g.Value) -> g.Value:
        return pool(pool(pool(v, 5), 5), 5)

    a = apply("Concat", three(x), three(y), axis=3)
    found = regions(a, three(apply("Concat", x, y, axis=3)))
    assert found.share == 0.7
    assert sum(read) < 1_000_000


def test_a_maximum_over_rows_and_columns_is_of_rows_of_columns() -> None:
    """Within others only, where what is shared is asked for again and again."""
    x = given_("x", 1, 1, 12, 12)
    for v, most in ((pool(pool(x, 5), 5), 5), (pool(x, 5), 25)):
        t = Composed().tensor(v)
        assert t.body is not None
        (own,) = shared([t.body])
        assert terms(own) == most
