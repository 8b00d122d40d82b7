"""Maxima as functions of their terms: what is equal so is equal, and most of what is equal is."""

from __future__ import annotations

import numpy as np
import pytest

from superopt.ir import graph
from superopt.partial.regions import equality, find
from superopt.partial.regions.boxes import Span
from superopt.partial.regions.points import Points
from superopt.partial.regions.term_sets import depends_on_terms_only, float_constants, sets_decide
from superopt.te.expr.node import Axis, Expr
from tests.support.partial.regions import apply, bodies, by_floats, given_

W, X, Y, Z = (given_(n, 1, 2, 6, 6) for n in "wxyz")


def same_terms(a: graph.Value, b: graph.Value) -> np.ndarray:
    """At each element."""
    axes, some = bodies(a, b)
    places = np.array(list(np.ndindex(*(int(str(d)) for d in a.type.shape or ()))))
    if not depends_on_terms_only(some):
        return np.zeros(len(places), bool)
    return equality.equal_term_sets(axes, some, places, float_constants(some))


def pool(x: graph.Value, *kernel: int, pads: tuple[int, ...] = (0, 0, 0, 0)) -> graph.Value:
    return apply("MaxPool", x, kernel_shape=kernel, pads=pads)


def most(*some: graph.Value) -> graph.Value:
    return apply("Max", *some)


def least(*some: graph.Value) -> graph.Value:
    return apply("Min", *some)


def add(a: graph.Value, b: graph.Value) -> graph.Value:
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
def test_the_same_terms(a: graph.Value, b: graph.Value) -> None:
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
def test_other_terms(a: graph.Value, b: graph.Value) -> None:
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
def test_a_term_that_is_there_twice_is_one(a: graph.Value, b: graph.Value) -> None:
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
def test_what_terms_decide(a: graph.Value, b: graph.Value, so: bool) -> None:
    assert sets_decide(bodies(a, b)[1]) == so


def test_what_numbers_tell_is_left_to_them() -> None:
    """Of max(x, min(x, y)) the second term is never the largest."""
    assert find.find_regions(most(X, least(X, Y)), X).equal_share == 1
    assert find.find_regions(add(most(X, Y), least(X, Y)), add(X, Y)).equal_share == 1


ZERO, SIX, TWO = (graph.constant(np.float32(n)) for n in (0, 6, 2))


def clip(x: graph.Value, low: graph.Value = ZERO, high: graph.Value = SIX) -> graph.Value:
    return apply("Clip", x, low, high)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (clip(pool(X, 3, 3)), pool(clip(X), 3, 3)),
        (clip(clip(X), TWO, SIX), clip(X, TWO, SIX)),
        (most(clip(X), TWO), clip(X, TWO, SIX)),
        (most(clip(X, ZERO, TWO), clip(X)), clip(X)),
        (least(X, most(clip(X), SIX)), least(X, most(X, SIX), SIX)),
        (apply("Neg", least(least(X, Y), SIX)), apply("Neg", least(X, least(SIX, Y)))),
    ],
)  # fmt: skip
def test_numbers_that_cap_terms(a: graph.Value, b: graph.Value) -> None:
    assert find.find_regions(a, b).equal_share == 1


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (clip(X), clip(Y)),
        (clip(X), clip(X, ZERO, TWO)),
        (clip(X), clip(X, TWO, SIX)),
        (clip(X), X),
        (least(X, SIX), most(X, SIX)),
    ],
)
def test_other_caps(a: graph.Value, b: graph.Value) -> None:
    found = find.find_regions(a, b)
    assert found.equal_share == 0
    assert found.is_exact


@pytest.mark.parametrize("n", [3, 7])
def test_pools_of_what_is_capped(n: int) -> None:
    """Whatever is given is above all caps or below, so that numbers tell of a window over 49 terms
    from one over fewer in none of 392: two images side by side were equal where they are not."""
    x, y = given_("x", 1, 4, 16, 16), given_("y", 1, 4, 16, 16)

    def window(v: graph.Value) -> graph.Value:
        return pool(clip(v), n, n, pads=(n // 2,) * 4)

    a = apply("Concat", window(x), window(y), axis=3)
    found = find.find_regions(a, window(apply("Concat", x, y, axis=3)))
    columns = Span(16 - n // 2, 16 + n // 2)
    assert found.different == ((Span(0, 1), Span(0, 4), Span(0, 16), columns),)
    assert found.is_exact


@pytest.mark.parametrize("before", ["Tanh", "Sigmoid", None])
def test_a_term_that_is_a_number_where_zeros_are_read(before: str | None) -> None:
    """Of zeros around an image a sum is 0, and so is its maximum with 0."""
    x, k = given_("x", 1, 1, 6, 6), given_("k", 1, 1, 3, 3)

    def window(v: graph.Value) -> graph.Value:
        return apply("Relu", apply(before, v) if before else apply("Conv", v, k))

    def framed(v: graph.Value) -> graph.Value:
        return apply("Pad", v, pads=(0, 0, 3, 3, 0, 0, 3, 3))

    if before:
        a, b = window(framed(x)), apply(before, framed(x))
        inner = ((Span(0, 1), Span(0, 1), Span(3, 9), Span(3, 9)),)
        assert find.find_regions(a, b).different == (
            inner if before == "Tanh" else ()
        )  # none is below 0
        return
    a, b = window(framed(x)), apply("Pad", window(x), pads=(0, 0, 3, 3, 0, 0, 3, 3))
    np.testing.assert_array_equal(find.find_regions(a, b).mask(), by_floats(a, b, 100))


def test_equal_terms_need_few_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a pool is its rows' and its columns', for which 8 x 49 were asked."""
    asked = []
    values = Points.values

    def counted(self: Points, e: Expr, axes: tuple[Axis, ...], places: np.ndarray) -> np.ndarray:
        asked.append(len(places))
        return values(self, e, axes, places)

    monkeypatch.setattr(Points, "values", counted)
    x = given_("x", 1, 64, 112, 112)
    rows = pool(x, 1, 7, pads=(0, 3, 0, 3))
    found = find.find_regions(pool(x, 7, 7, pads=(3, 3, 3, 3)), pool(rows, 7, 1, pads=(3, 0, 3, 0)))
    assert found.equal == ((Span(0, 1), Span(0, 64), Span(0, 112), Span(0, 112)),)
    assert len(asked) <= 2 * equality.FIELD_INPUTS


CLIPPED = apply("Clip", X, ZERO, SIX)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (apply("Relu", least(X, X)), apply("Relu", X)),
        (least(least(X, X), SIX), least(X, SIX)),
        (apply("Clip", least(X, X), ZERO, SIX), apply("Clip", X, ZERO, SIX)),
        (least(CLIPPED, CLIPPED), CLIPPED),
        (least(apply("Relu", X), apply("Relu", Y)), apply("Relu", least(X, Y))),
    ],
)  # fmt: skip
def test_caps_of_one_thing_are_of_the_kind_that_the_others_are(
    a: graph.Value, b: graph.Value
) -> None:
    """They were of a maximum beside minima, and said to differ everywhere."""
    found = find.find_regions(a, b)
    assert (found.equal_share, found.is_exact) == (1, True)
