"""Maxima as functions of their terms: what is equal so is equal, and most of what is equal is."""

from __future__ import annotations

import numpy as np
import pytest

from superopt.ir import graph as g
from superopt.partial import regions as r
from superopt.partial.boxes import Span
from superopt.partial.composed import Composed
from superopt.partial.extremes import by_terms, decided
from superopt.partial.points import Points
from superopt.te.inline import placed
from superopt.te.node import Axis, Expr
from tests.partial.test_regions import apply, given_

W, X, Y, Z = (given_(n, 1, 2, 6, 6) for n in "wxyz")


def bodies(a: g.Value, b: g.Value) -> tuple[tuple[Axis, ...], list[Expr]]:
    both = Composed()
    one, other = r._computed(both.tensor(a)), r._computed(both.tensor(b))
    assert one.body is not None
    assert other.body is not None
    return one.axes, [one.body, placed(other.body, dict(zip(other.axes, one.axes, strict=True)))]


def same_terms(a: g.Value, b: g.Value) -> np.ndarray:
    """At each element."""
    axes, some = bodies(a, b)
    places = np.array(list(np.ndindex(*(int(str(d)) for d in a.type.shape or ()))))
    if not by_terms(some):
        return np.zeros(len(places), bool)
    return r._of_same_terms(axes, some, places)


def pool(x: g.Value, *kernel: int, pads: tuple[int, ...] = (0, 0, 0, 0)) -> g.Value:
    return apply("MaxPool", x, kernel_shape=kernel, pads=pads)


def most(*some: g.Value) -> g.Value:
    return apply("Max", *some)


def least(*some: g.Value) -> g.Value:
    return apply("Min", *some)


def add(a: g.Value, b: g.Value) -> g.Value:
    return apply("Add", a, b)


ONE = apply("Div", Y, Y)
SMALL = pool(X, 3, 3, pads=(1, 1, 1, 1))
ROWS = pool(X, 1, 3, pads=(0, 1, 0, 1))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (most(X, Y), most(Y, X)),
        (most(most(X, Y), Z), most(X, most(Y, Z))),
        (most(most(W, X), most(Y, Z)), most(most(W, Z), most(Y, X))),
        (least(add(X, Y), Z), least(Z, add(Y, X))),
        (pool(X, 3, 3, pads=(1, 1, 1, 1)), pool(ROWS, 3, 1, pads=(1, 0, 1, 0))),
        (apply("Relu", add(X, Y)), apply("Relu", add(Y, X))),
    ],
)  # fmt: skip
def test_the_same_terms(a: g.Value, b: g.Value) -> None:
    assert same_terms(a, b).all()


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (X, Y),
        (most(X, Y), X),
        (most(X, Y), least(X, Y)),
        (most(X, Y), add(X, Y)),
        (apply("Relu", X), X),
        # sums of maxima are none of all terms
        (add(most(W, X), most(Y, Z)), add(most(W, Y), most(X, Z))),
        (most(add(W, X), add(Y, Z)), most(add(W, Y), add(X, Z))),
        (most(least(W, X), least(Y, Z)), most(least(W, Y), least(X, Z))),
        (apply("Neg", most(X, Y)), most(apply("Neg", X), apply("Neg", Y))),
        (pool(X, 3, 3), pool(apply("Slice", Y, starts=(0,), ends=(6,), axes=(3,)), 3, 3)),
        # what asks for a place in the order, and what for component 1, is left to numbers
        (apply("Abs", X), X),
        (apply("Sign", X), apply("Sign", X)),
        (apply("Exp", most(X, Y)), apply("Mul", apply("Exp", X), apply("Exp", Y))),
    ],
)  # fmt: skip
def test_other_terms(a: g.Value, b: g.Value) -> None:
    assert not same_terms(a, b).any()


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (most(most(X, X), Y), most(X, Y)),
        (pool(X, 5, 5, pads=(2, 2, 2, 2)), pool(SMALL, 3, 3, pads=(1, 1, 1, 1))),
        (pool(apply("Pad", X, pads=(0, 0, 1, 1, 0, 0, 1, 1), mode="edge"), 3, 3),
         pool(X, 3, 3, pads=(1, 1, 1, 1))),
        (most(X, X), X),
    ],
)  # fmt: skip
def test_a_term_that_is_there_twice_is_one(a: g.Value, b: g.Value) -> None:
    assert same_terms(a, b).all()


@pytest.mark.parametrize(
    ("a", "b", "so"),
    [
        (pool(X, 3, 3), pool(Y, 3, 3), True),
        (apply("Relu", add(X, Y)), X, True),
        (apply("Neg", most(X, Y)), add(most(X, Y), Z), True),
        (most(X, Y), least(X, Y), False),  # max(x, min(x, y)) is x
        (apply("Mul", most(X, Y), most(X, Z)), X, False),  # (m - x) (m - y) is 0
        (most(add(X, most(Y, Z)), X), X, False),  # x + max(y, z) is one of two terms
        (most(apply("Relu", X), ONE), X, False),  # max(0, 1) is 1
        (apply("Sigmoid", most(X, Y)), X, False),
        (apply("Abs", X), X, False),
        (X, Y, False),
    ],
)  # fmt: skip
def test_what_terms_decide(a: g.Value, b: g.Value, so: bool) -> None:
    assert decided(bodies(a, b)[1]) == so


def test_what_numbers_tell_is_left_to_them() -> None:
    """Of max(x, min(x, y)) the second term is never the largest, and max(0, 1) is 1."""
    assert r.regions(most(X, least(X, Y)), X).share == 1
    assert r.regions(most(apply("Relu", X), ONE), most(X, ONE)).share == 1


def test_few_inputs_are_asked_where_terms_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a pool is its rows' and its columns', for which 8 x 49 were asked."""
    asked = []
    values = Points.values

    def counted(self: Points, e: Expr, axes: tuple[Axis, ...], places: np.ndarray) -> np.ndarray:
        asked.append(len(places))
        return values(self, e, axes, places)

    monkeypatch.setattr(Points, "values", counted)
    x = given_("x", 1, 64, 112, 112)
    rows = pool(x, 1, 7, pads=(0, 3, 0, 3))
    found = r.regions(pool(x, 7, 7, pads=(3, 3, 3, 3)), pool(rows, 7, 1, pads=(3, 0, 3, 0)))
    assert found.equal == ((Span(0, 1), Span(0, 64), Span(0, 112), Span(0, 112)),)
    assert len(asked) <= 2 * (r.SOON + r.INPUTS)
