"""Sums within sums as tensors: the same values, of fewer terms."""

from __future__ import annotations

import numpy as np
import pytest

from superopt.ir import graph
from superopt.partial.regions.composition import Composer
from superopt.partial.regions.find import find_regions
from superopt.partial.regions.nested_sums import share_nested_sums
from superopt.partial.regions.points import Points, term_count
from superopt.partial.regions.term_sets import float_constants
from superopt.te.analysis.walk import subexpressions
from superopt.te.expr.node import Load
from tests.support.partial.regions import apply, given_, pool

X, K, Q = given_("x", 1, 3, 6, 7), given_("k", 3, 3, 3, 3), given_("q", 3, 3, 3, 3)
PADS = (1, 1, 1, 1)


def conv(x: graph.Value, k: graph.Value, **attrs: object) -> graph.Value:
    return apply("Conv", x, k, **{"pads": PADS, **attrs})


def mean(x: graph.Value) -> graph.Value:
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
def test_the_same_values(v: graph.Value, sets: bool) -> None:
    t = Composer().tensor(v)
    assert t.body is not None
    (own,) = share_nested_sums([t.body])
    assert any(isinstance(e, Load) and e.tensor.body for e in subexpressions(own))
    assert term_count(own) < term_count(t.body)
    shape = [int(str(d)) for d in t.shape]
    places = np.array(list(np.ndindex(*shape)))
    points = Points(3, numbers=float_constants([t.body]) if sets else None)
    np.testing.assert_array_equal(
        points.values(own, t.axes, places), points.values(t.body, t.axes, places)
    )


def test_windows_over_windows_are_compared_by_few_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three pools of 5 x 5 have 15,625 terms, of 169 elements; two images of them side by side took
    longer than 8 s."""
    read = []
    drawing = Points.draw_elements

    def counted(self: Points, t: object, where: np.ndarray) -> np.ndarray:
        read.append(where.size)
        return drawing(self, t, where)  # type: ignore[arg-type]

    monkeypatch.setattr(Points, "draw_elements", counted)
    x, y = given_("x", 1, 8, 20, 20), given_("y", 1, 8, 20, 20)

    def three(v: graph.Value) -> graph.Value:
        return pool(pool(pool(v, 5), 5), 5)

    a = apply("Concat", three(x), three(y), axis=3)
    found = find_regions(a, three(apply("Concat", x, y, axis=3)))
    assert found.equal_share == 0.7
    assert sum(read) < 1_000_000


def test_a_maximum_over_rows_and_columns_is_of_rows_of_columns() -> None:
    """Within others only, where what is shared is asked for again and again."""
    x = given_("x", 1, 1, 12, 12)
    for v, most in ((pool(pool(x, 5), 5), 5), (pool(x, 5), 25)):
        t = Composer().tensor(v)
        assert t.body is not None
        (own,) = share_nested_sums([t.body])
        assert term_count(own) == most
