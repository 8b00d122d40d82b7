"""Regions against the comparison of every element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from superopt.generate.enumeration.serialize import enumerate_family, read_enumeration
from superopt.generate.families.registry import FAMILIES
from superopt.generate.generalize.term_graphs import term_value
from superopt.ir import graph
from superopt.ir.op import InferError
from superopt.partial.regions.boxes import format_box
from superopt.partial.regions.cells import TooManyCells
from superopt.partial.regions.equality import Comparison
from superopt.partial.regions.find import find_regions
from tests.support.breadth import examples
from tests.support.partial.regions import apply, by_floats, exact, given_, truth


@pytest.mark.one_in(0)
@pytest.mark.parametrize(
    ("family", "every"),
    [
        ("borders", 18),
        ("kernels", 2),
        ("pools", 5),
        pytest.param("borders", 1, marks=pytest.mark.slow),
        pytest.param("kernels", 1, marks=pytest.mark.slow),
        pytest.param("pools", 1, marks=pytest.mark.slow),
    ],
)
def test_of_enumerated_pairs(family: str, every: int) -> None:
    """Of products and sums: of maxima chance says more than two inputs do."""
    held = FAMILIES[family]()
    count = 0
    for p in read_enumeration(enumerate_family((held, min(3, held.max_ops), 0))).partial[::every]:
        inputs = tuple(given_(f"v{k}", *held.inputs[i]) for k, i in enumerate(p.equation.inputs))
        a, b = (term_value(s, held, inputs) for s in (p.equation.left, p.equation.right))
        found = find_regions(a, b)
        if found.chance is not None:
            np.testing.assert_array_equal(found.mask(), truth(a, b))
            count += 1
    assert count > 10


def test_a_maximum_next_to_zeros() -> None:
    """What a border of zeros does is seen only where all of a window is below 0."""
    x, pads = given_("x", 1, 1, 6, 6), (0, 0, 1, 1, 0, 0, 1, 1)
    window: dict[str, Any] = {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)}
    a = apply("MaxPool", apply("Pad", x, pads=pads), **window)
    b = apply("Pad", apply("MaxPool", x, **window), pads=pads)
    found = find_regions(a, b)
    assert found.chance is None
    np.testing.assert_array_equal(found.mask(), by_floats(a, b, 200))
    assert [*map(format_box, found.equal)] == ["[0, 0, 2:6, 2:6]"]


@pytest.mark.slow
@pytest.mark.parametrize("family", ["borders", "kernels", "pools"])
def test_of_enumerated_pairs_with_maxima(family: str) -> None:
    held = FAMILIES[family]()
    count = 0
    for p in read_enumeration(enumerate_family((held, min(3, held.max_ops), 0))).partial:
        inputs = tuple(given_(f"v{k}", *held.inputs[i]) for k, i in enumerate(p.equation.inputs))
        a, b = (term_value(s, held, inputs) for s in (p.equation.left, p.equation.right))
        found = find_regions(a, b)
        if found.chance is None:
            np.testing.assert_array_equal(found.mask(), by_floats(a, b, 300))
            count += 1
    assert count > 10


def test_two_images_side_by_side() -> None:
    x, y, k = given_("x", 1, 3, 5, 8), given_("y", 1, 3, 5, 8), given_("k", 4, 3, 3, 3)
    pads = (1, 1, 1, 1)
    a = apply("Concat", *(apply("Conv", v, k, pads=pads) for v in (x, y)), axis=3)
    b = apply("Conv", apply("Concat", x, y, axis=3), k, pads=pads)
    found = find_regions(a, b)
    assert [*map(format_box, found.equal)] == ["[0, 0:4, 0:5, 0:7]", "[0, 0:4, 0:5, 9:16]"]
    assert [*map(format_box, found.different)] == ["[0, 0:4, 0:5, 7:9]"]
    assert found.chance is not None
    assert 0 < found.chance < 1e-17


def test_what_meets_on_a_diagonal() -> None:
    x = given_("x", 7, 7)
    exact(x, apply("Transpose", x, perm=(1, 0)))
    exact(apply("Neg", x), apply("Transpose", apply("Neg", x), perm=(1, 0)))


@pytest.mark.parametrize("n", [6, 8, 70])
@pytest.mark.parametrize("anti", [False, True])
def test_what_meets_on_a_diagonal_of_any_length(n: int, anti: bool) -> None:
    """A sample of a few elements has none of it."""
    x = given_("x", n, n)
    back = {"axes": (0, 1), "starts": (n - 1, n - 1), "ends": (-n - 1, -n - 1), "steps": (-1, -1)}
    turned = apply("Transpose", apply("Slice", x, **back) if anti else x, perm=(1, 0))
    found = find_regions(x, turned)
    assert found.is_exact
    wanted = np.eye(n, dtype=bool)
    np.testing.assert_array_equal(found.mask(), wanted[::-1] if anti else wanted)


def test_what_is_too_large_is_not_said_to_be_exact() -> None:
    x = given_("x", 4000, 4000)
    found = find_regions(x, apply("Transpose", x, perm=(1, 0)))
    assert not found.is_exact
    assert not found.equal


def test_sums_of_unequal_length() -> None:
    """An axis of channels is not shortened where the other program reads it by half."""
    x, k = given_("x", 1, 12, 3, 3), given_("k", 2, 12, 1, 1)
    half: dict[str, Any] = {"starts": (0,), "ends": (6,), "axes": (1,)}
    a = apply("Conv", x, k)
    exact(a, apply("Conv", apply("Slice", x, **half), apply("Slice", k, **half)))
    x, y = given_("x", 5, 12), given_("y", 12, 4)
    padded = apply("MatMul", apply("Pad", x, pads=(0, 0, 0, 2)), apply("Pad", y, pads=(0, 0, 2, 0)))
    exact(apply("MatMul", x, y), padded)


@pytest.mark.parametrize("n", [3, 8])
def test_an_axis_that_is_not_read_is_counted(n: int) -> None:
    """Of a sum: as many terms as it has, which fewer are not."""
    x, y = given_("x", 1), given_("y", 12, 1)

    def total(v: graph.Value, n: int) -> graph.Value:
        return apply("ReduceSum", apply("Expand", v, shape=(n,)), axes=(0,), keepdims=1)

    exact(total(x, 8), total(x, 4))
    exact(apply("ReduceSum", apply("Expand", x, shape=(n,)), axes=(0,), keepdims=1), x)
    sums = [
        apply("ReduceSum", v, axes=(0,), keepdims=1)
        for v in (apply("Add", y, x), apply("Add", y, apply("Div", x, apply("Div", x, x))))
    ]
    two = apply("Add", apply("ReduceSum", y, axes=(0,), keepdims=1), apply("Add", x, x))
    for v in sums:  # each x is there 12 times, not twice
        exact(apply("Squeeze", v, axes=(0,)), apply("Squeeze", two, axes=(0,)))


def test_what_the_ends_of_a_window_do_not_tell() -> None:
    """Kernels that differ in their middle only; and sums of functions, of which none is 0."""
    x, k, q = given_("x", 1, 2, 4, 9), given_("k", 2, 2, 1, 5), given_("q", 2, 2, 1, 5)
    cuts = ((k, 0, 2), (q, 2, 3), (k, 3, 5))
    mixed = apply(
        "Concat",
        *(apply("Slice", v, starts=(a,), ends=(b,), axes=(3,)) for v, a, b in cuts),
        axis=3,
    )
    exact(apply("Conv", x, k, pads=(0, 2, 0, 2)), apply("Conv", x, mixed, pads=(0, 2, 0, 2)))
    y = given_("y", 5, 3)
    ends: dict[str, Any] = {"starts": (-1,), "ends": (-6,), "axes": (0,), "steps": (-1,)}
    back = apply("Slice", y, **ends)
    last = apply("Concat", *(apply("Slice", y, starts=(a,), ends=(b,), axes=(0,))
                             for a, b in ((1, 5), (0, 1))), axis=0)  # fmt: skip
    for other in (back, last):
        both = (apply("Sigmoid", v) for v in (y, other))
        exact(*(apply("ReduceSum", v, axes=(0,), keepdims=0) for v in both))


def test_every_other_row() -> None:
    x = given_("x", 8, 5)
    pairs = apply("Transpose", apply("Reshape", x, shape=(4, 2, 5)), perm=(1, 0, 2))
    exact(x, apply("Reshape", pairs, shape=(8, 5)))
    wrong = apply("Slice", x, starts=(1,), ends=(8,), axes=(0,), steps=(2,))
    right = apply("Slice", x, starts=(0,), ends=(8,), axes=(0,), steps=(2,))
    each = [apply("Unsqueeze", v, axes=(1,)) for v in (right, apply("Neg", wrong))]
    half = apply("Reshape", apply("Concat", *each, axis=1), shape=(8, 5))
    exact(x, half)
    assert [*map(format_box, find_regions(x, half).equal)] == ["[0:7:2, 0:5]"]


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (1, 2, 1, 9), (2, 1, 2, 2)])
def test_images_smaller_than_kernels(shape: tuple[int, ...]) -> None:
    x, k = given_("x", *shape), given_("k", 1, shape[1], 5, 5)
    exact(
        apply("Conv", x, k, pads=(2, 2, 2, 2)),
        apply("Conv", apply("Pad", x, pads=(0, 0, 2, 2, 0, 0, 2, 2), mode="edge"), k),
    )


def test_nothing_is_equal_of_nothing() -> None:
    x = given_("x", 0, 3)
    found = find_regions(x, apply("Neg", x))
    assert (found.equal, found.different, found.equal_share) == ((), (), 1.0)


@pytest.mark.parametrize("op", ["Abs", "Floor"])
@pytest.mark.parametrize("over", ["ReduceSum", "ReduceL2"])
def test_sums_of_nothing(op: str, over: str) -> None:
    """A condition in a sum, or of one, that has no places."""
    x = given_("x", 2, 0)
    total = apply(over, x, axes=(1,), keepdims=1)
    assert find_regions(total, apply(op, total)).equal_share == 1
    assert find_regions(total, apply(over, apply(op, x), axes=(1,), keepdims=1)).equal_share == 1


def test_other_types_and_symbolic_sizes_are_refused() -> None:
    x = given_("x", 2, 3)
    with pytest.raises(ValueError, match=r"f32\[2, 3\] and f32\[3, 2\]"):
        find_regions(x, apply("Transpose", x, perm=(1, 0)))


windows = st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(0, 3), st.integers(0, 3))


@examples(60)
@given(windows, windows, st.integers(3, 11), st.sampled_from([2, 3]), st.booleans())
def test_of_random_windows(
    one: tuple[int, ...], other: tuple[int, ...], width: int, axis: int, joined: bool
) -> None:
    """Two convolutions of one image or of several, of any strides, dilations and pads."""
    x, y = given_("x", 1, 2, 4, width), given_("y", 1, 2, 4, width)
    k = given_("k", 2, 2, 1, 3)
    whole = apply("Concat", x, y, axis=axis)

    def conv(v: graph.Value, w: tuple[int, ...]) -> graph.Value:
        step, dilation, low, high = w
        return apply(
            "Conv", v, k, strides=(1, step), dilations=(1, dilation), pads=(0, low, 0, high)
        )

    try:
        a = apply("Concat", conv(x, one), conv(y, one), axis=axis) if joined else conv(whole, one)
        b = conv(whole, other)
        if a.type != b.type:
            return
        exact(a, b)
    except (InferError, TooManyCells):
        return


def side_by_side(
    make: Callable[[graph.Value], graph.Value], *shape: int
) -> tuple[graph.Value, graph.Value]:
    """Of two images each by itself, and of both at once."""
    x, y = given_("x", *shape), given_("y", *shape)
    return apply("Concat", make(x), make(y), axis=3), make(apply("Concat", x, y, axis=3))


def convolution(v: graph.Value, name: str, channels: int = 64) -> graph.Value:
    kernel = given_(name, channels, channels, 3, 3)
    return apply("Conv", v, KERNELS.setdefault((name, channels), kernel), pads=(1, 1, 1, 1))


KERNELS: dict[tuple[str, int], graph.Input] = {}
SLOPES = given_("slopes", 64, 1, 1)
FUNCTIONS: dict[str, Callable[[graph.Value], graph.Value]] = {
    "LeakyRelu": lambda v: apply("LeakyRelu", v),
    "PRelu": lambda v: apply("PRelu", v, SLOPES),
    "Gelu": lambda v: apply("Gelu", v),
    "Silu": lambda v: apply("Mul", v, apply("Sigmoid", v)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_of_the_same_functions_few_inputs_are_tried(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of which 512 took 6 to 32 s."""
    draws: list[int] = []
    drawn = Comparison.sample

    def counted(self: Comparison, bodies: Any, places: Any, of: Any, points: Any) -> Any:
        draws.append(len(places) * len(of))
        return drawn(self, bodies, places, of, points)

    monkeypatch.setattr(Comparison, "sample", counted)
    f = FUNCTIONS[name]
    found = find_regions(
        *side_by_side(lambda v: f(convolution(f(convolution(v, "k")), "q")), 1, 64, 9, 9)
    )
    assert found.is_exact
    assert [*map(format_box, found.different)] == ["[0, 0:64, 0:9, 7:11]"]
    assert sum(draws) < 1000


def test_of_long_sums_few_elements_are_compared() -> None:
    """4,096 elements of 6,272 terms each took 3 s, of channels and rows that are not alike."""
    back: dict[str, Any] = {"starts": (-1, -1), "ends": (-99, -99), "steps": (-1, -1)}

    def gated(v: graph.Value) -> graph.Value:
        turned = apply("Add", v, apply("Slice", v, axes=(1, 2), **back))
        return apply("Mul", turned, apply("Sigmoid", apply("GlobalAveragePool", v)))

    found = find_regions(*side_by_side(gated, 1, 64, 56, 56))
    assert not found.equal
    assert not found.is_exact
    assert found.compared_elements * 2 * 56 * 56 < 1 << 19


def test_of_sums_of_sums_few_elements_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """1,568 elements of a norm over a convolution took 43 s: each has millions of terms."""

    def gated(v: graph.Value) -> graph.Value:
        return apply("Mul", v, apply("Sigmoid", apply("GlobalAveragePool", v)))

    pair = side_by_side(gated, 1, 2, 9, 40)
    every = find_regions(*pair)
    assert every.is_exact
    monkeypatch.setattr("superopt.partial.regions.find.MAX_EXHAUSTIVE_TERMS", 1 << 10)
    monkeypatch.setattr("superopt.partial.regions.find.MAX_LATER_TERMS", 1 << 10)
    found = find_regions(*pair)
    assert not found.equal
    assert found.compared_elements < every.compared_elements
