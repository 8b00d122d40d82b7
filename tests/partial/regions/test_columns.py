"""Axes whose places are alike though nothing moves along them."""

from __future__ import annotations

import pytest

from superopt.ir import graph
from superopt.partial.regions.boxes import format_box
from superopt.partial.regions.composition import Composer
from superopt.partial.regions.find import find_regions
from superopt.partial.regions.shortened_sums import interchangeable_columns
from tests.support.partial.regions import apply, exact, given_

X = given_("x", 1, 6, 4, 5)
K, Q = given_("k", 6, 6, 3, 3), given_("q", 6, 6, 3, 3)
A, B = given_("a", 6, 6), given_("b", 6, 6)
V = given_("v", 6, 1)
SLOPES = given_("slopes", 6, 1, 1)


def conv(x: graph.Value, k: graph.Value) -> graph.Value:
    return apply("Conv", x, k, pads=(1, 1, 1, 1))


def residual(x: graph.Value) -> graph.Value:
    return apply("Add", x, conv(apply("Relu", conv(x, K)), Q))


def product(*some: graph.Value) -> graph.Value:
    out = some[0]
    for v in some[1:]:
        out = apply("MatMul", out, v)
    return out


def turned(x: graph.Value, *perm: int) -> graph.Value:
    return apply("Transpose", x, perm=perm)


def axes_of(v: graph.Value) -> list[int]:
    t = Composer().tensor(v)
    assert t.body is not None
    return [some[0] for some, _ in interchangeable_columns([t.body], t.axes) if len(some) == 1]


@pytest.mark.parametrize(
    ("value", "axes"),
    [
        (residual(X), [0, 1]),
        (conv(conv(X, K), K), [0, 1]),
        (apply("PRelu", conv(apply("PRelu", X, SLOPES), K), SLOPES), [0, 1]),
        (product(A, B, A), [0, 1]),
        (product(A, V), [0, 1]),
        (product(A, A), []),  # both axes are indices of the same
        (apply("Add", A, turned(A, 1, 0)), []),
        (apply("Trilu", A, upper=1), []),
        (apply("Slice", A, axes=(0,), starts=(5,), ends=(-7,), steps=(-1,)), [1]),
        (apply("Slice", A, axes=(0,), starts=(0,), ends=(4,)), [0, 1]),
        (apply("CumSum", A, axis=0), [1]),
        (apply("Add", product(A, V), apply("Slice", B, axes=(1,), starts=(2,), ends=(3,))), [0, 1]),
        (apply("Add", A, apply("Slice", A, axes=(0,), starts=(2,), ends=(3,))), [1]),
    ],
)  # fmt: skip
def test_which_are(value: graph.Value, axes: list[int]) -> None:
    assert axes_of(value) == axes


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("a", "b"),
    [
        (residual(X), apply("Add", X, conv(conv(X, K), Q))),
        (residual(X), residual(apply("Pad", X, pads=(0,) * 8))),
        (conv(conv(X, K), Q), conv(conv(X, Q), K)),
        (conv(conv(X, K), K), conv(conv(X, turned(K, 1, 0, 2, 3)), turned(K, 1, 0, 2, 3))),
        (apply("Add", X, conv(X, K)), apply("Add", conv(X, K), apply("Tanh", X))),
        (apply("Add", X, conv(X, K)), conv(X, apply("Add", K, turned(K, 1, 0, 2, 3)))),
        (product(A, B, A), product(A, product(B, A))),
        (product(A, B, A), product(turned(A, 1, 0), B, A)),
        (product(A, B, A), product(B, A, A)),
        (product(A, A), product(turned(A, 1, 0), A)),
        (product(A, A, V), product(A, turned(A, 1, 0), V)),
        (product(A, A), apply("Add", product(A, A), apply("Sub", A, turned(A, 1, 0)))),
    ],
)
def test_is_as_the_comparison_of_every_element(a: graph.Value, b: graph.Value) -> None:
    exact(a, b)


@pytest.mark.parametrize("channels", [64, 512])
def test_residual_blocks_of_models(channels: int) -> None:
    """Of which few channels tell all: those of 512 took 5 s, and not each was compared."""
    x, y = (given_(n, 1, channels, 28, 28) for n in "xy")
    k, q = (given_(n, channels, channels, 3, 3) for n in "kq")

    def block(v: graph.Value) -> graph.Value:
        return apply("Relu", apply("Add", v, conv(apply("Relu", conv(v, k)), q)))

    found = find_regions(
        apply("Concat", block(x), block(y), axis=3), block(apply("Concat", x, y, axis=3))
    )
    assert found.is_exact
    assert found.compared_elements < 200
    assert [*map(format_box, found.different)] == [f"[0, 0:{channels}, 0:28, 26:30]"]


def traced(v: graph.Value) -> graph.Value:
    return apply("ReduceSum", v, axes=(0, 1), keepdims=1)


@pytest.mark.parametrize("n", [3, 7])
def test_products_that_read_the_same_matrix_again(n: int) -> None:
    """Rows and columns of it are of one kind, of which few tell of all (`shortened_sums.py`)."""
    a, b = given_("a", n, n), given_("b", n, n)
    t = turned(a, 1, 0)
    for one, other in (
        (product(a, b, a), apply("MatMul", a, product(b, a))),
        (product(a, t), turned(product(a, t), 1, 0)),
        (product(a, a), turned(product(a, a), 1, 0)),  # on the diagonal
        (product(a, b), product(b, a)),
        (product(a, b, a), product(a, a, b)),
        (product(a, a, a, a), apply("MatMul", product(a, a), product(a, a))),
        (product(a, t, a), turned(product(t, a, t), 1, 0)),
        (product(a, t, a), product(a, t, t)),
        (apply("Mul", a, product(a, b)), apply("Mul", a, product(a, t))),
        (apply("Add", a, product(a, a)), apply("Add", t, product(a, a))),
        (traced(apply("Mul", a, b)), traced(product(a, turned(b, 1, 0)))),
        (traced(product(a, b, t)), traced(product(t, a, b))),
        (traced(product(a, b, t)), traced(product(a, turned(b, 1, 0), t))),
    ):
        exact(one, other)


def test_windows_of_one_kernel_again_and_again() -> None:
    """Its channels are those of what is between, and of the result."""
    x, y, k = given_("x", 1, 6, 3, 5), given_("y", 1, 6, 3, 5), given_("k", 6, 6, 3, 3)

    def made(v: graph.Value) -> graph.Value:
        for _ in range(3):
            v = apply("Conv", v, k, pads=(1, 1, 1, 1))
        return v

    exact(
        apply("Concat", made(x), made(y), axis=3),
        made(apply("Concat", x, y, axis=3)),
    )
