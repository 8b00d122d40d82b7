"""Long sums of which there are few, in parts: equal to what they were."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from superopt.kernels.loops.loop_transforms import reduction
from superopt.plan.rewrites.reductions.split_reduction import split_reductions
from superopt.te.analysis.walk import loads
from superopt.te.eval.interpret import evaluate
from superopt.te.expr.dtype import F32
from superopt.te.expr.node import Expr, Load
from superopt.te.expr.tensor import (
    Tensor,
    TensorType,
    apply,
    compute,
    placeholder,
    reduce_max,
    reduce_min,
    reduce_sum,
)
from tests.support.breadth import examples

Fold = Callable[..., Expr]
X = placeholder("x", TensorType(F32, (3, 64, 40)))
NUMBERS = np.random.default_rng(0).integers(-9, 9, (3, 64, 40)).astype(np.float32)


def computed(now: Tensor, numbers: np.ndarray) -> np.ndarray:
    """Of whole numbers, so that no order of a sum rounds."""
    return np.asarray(evaluate(now, {"x": numbers}))


def total(fn: Fold = reduce_sum) -> Tensor:
    return compute((3,), lambda c: fn((64, 40), lambda i, j: X[c, i, j]) * 2, name="total")


@pytest.mark.parametrize("fn", [reduce_sum, reduce_max])
@pytest.mark.parametrize(("wanted", "parts"), [(12, 4), (48, 16), (96, 32), (200, 32)])
def test_the_first_axes_are_those_of_the_parts(fn: Fold, wanted: int, parts: int) -> None:
    t = total(fn)
    made = split_reductions({t: t}, (), (), {t}, wanted)
    each, again = made
    assert again is t
    assert [a.extent for a in each.axes] == [parts, 3]
    found, last = reduction(each), reduction(made[t])
    assert found is not None
    assert last is not None
    assert prod(a.size for a in found.axes) * parts == 64 * 40
    assert [a.extent for a in last.axes] == [parts]
    np.testing.assert_array_equal(computed(made[t], NUMBERS), computed(t, NUMBERS))


@pytest.mark.parametrize("fn", [reduce_sum, reduce_max, reduce_min])
@pytest.mark.parametrize(
    ("shape", "wanted", "parts"),
    [((3, 2063, 1), 90, 17), ((3, 1031, 2), 96, 17), ((3, 3, 2063), 90, 27)],
)
def test_the_last_part_goes_beyond_a_sum_that_little_divides(
    fn: Fold, shape: tuple[int, int, int], wanted: int, parts: int
) -> None:
    x = placeholder("x", TensorType(F32, shape))
    t = compute((3,), lambda c: fn(shape[1:], lambda i, j: x[c, i, j]))
    each, _ = made = split_reductions({t: t}, (), (), {t}, wanted)
    assert [a.extent for a in each.axes] == [parts, 3]
    for sign in (-1, 1):  # the largest of those below 0, the least of those above
        numbers = sign * np.random.default_rng(0).integers(1, 9, shape).astype(np.float32)
        np.testing.assert_array_equal(computed(made[t], numbers), computed(t, numbers))


def test_a_sum_of_two_vectors_products_is_no_product_of_matrices() -> None:
    x, y = (placeholder(n, TensorType(F32, (1, 4096))) for n in "xy")
    t = compute((1, 1), lambda i, j: reduce_sum(4096, lambda k: x[i, k] * y[j, k]))
    assert len(split_reductions({t: t}, (), {y}, {t}, 64)) == 2


@pytest.mark.parametrize(
    ("shape", "wanted", "leads"),
    [((3, 20, 40), 100, False), ((3, 64, 40), 3, False), ((3, 64, 40), 100, True),
     ((3, 1021, 1), 9, False)],
    ids=["short", "enough", "rows", "a prime number of terms, and few parts"],
)  # fmt: skip
def test_others_stay(shape: tuple[int, int, int], wanted: int, leads: bool) -> None:
    x = placeholder("x", TensorType(F32, shape))
    t = compute((3,), lambda c: reduce_sum(shape[1:], lambda i, j: x[c, i, j]))
    assert split_reductions({t: t}, {t} if leads else (), (), {t}, wanted) == {t: t}


def test_products_of_matrices_stay() -> None:
    w = placeholder("w", TensorType(F32, (4096, 8)))
    x = placeholder("x", TensorType(F32, (4096,)))
    t = compute((8,), lambda n: reduce_sum(4096, lambda k: x[k] * w[k, n]))
    assert split_reductions({t: t}, (), {w}, {t}, 10_000) == {t: t}


def test_what_only_adds_a_sum_adds_its_parts() -> None:
    s = compute((8,), lambda c: reduce_sum((32, 40), lambda i, j: X[0, c + i, j]), name="s")
    m = compute((2,), lambda g: apply("max", reduce_sum(4, lambda k: s[g * 4 + k]), 0), name="m")
    made = split_reductions({s: s, m: m}, (), (), {m}, 64)
    each, last = made
    assert last is m
    assert s not in made
    found = reduction(made[m])
    assert found is not None
    assert isinstance(found.body, Load)
    assert found.body.tensor is each
    np.testing.assert_array_equal(computed(made[m], NUMBERS), computed(m, NUMBERS))
    kept = split_reductions({s: s, m: m}, (), (), {s, m}, 64)
    assert s in kept  # which is needed itself


def test_a_long_sum_of_long_sums() -> None:
    """What reads parts is in parts itself, as it is by then."""
    x = placeholder("x", TensorType(F32, (2048, 40, 40)))
    s = compute((2048,), lambda c: reduce_sum((40, 40), lambda i, j: x[c, i, j]), name="s")
    m = compute((1,), lambda g: reduce_sum(2048, lambda k: s[g + k]), name="m")
    made = split_reductions({s: s, m: m}, (), (), {m}, 8192)
    assert s not in made
    inside = set(made)
    for now in made.values():
        assert now.body is not None
        assert {y.tensor for y in loads(now.body)} <= inside | {x}
        inside |= {now}
    numbers = np.arange(2048 * 1600).reshape(2048, 40, 40) % 7
    np.testing.assert_array_equal(computed(made[m], numbers.astype(np.float32)), [numbers.sum()])


@examples(60)
@given(
    shape=st.tuples(st.integers(1, 4), st.integers(1, 70), st.integers(1, 70)),
    wanted=st.integers(1, 500),
)
def test_any_extents(shape: tuple[int, int, int], wanted: int) -> None:
    x = placeholder("x", TensorType(F32, shape))
    numbers = np.arange(prod(shape), dtype=np.float32).reshape(shape) % 17
    t = compute(shape[:1], lambda c: reduce_sum(shape[1:], lambda i, j: x[c, i, j]), name="t")
    made = split_reductions({t: t}, (), (), {t}, wanted)
    np.testing.assert_array_equal(computed(made[t], numbers), numbers.sum((1, 2)))
