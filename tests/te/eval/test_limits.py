"""Time and memory of the vectorised reading, far from its goals and farther from naive ones."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest

from superopt.ir.evaluate import evaluate_node
from superopt.ops import OPS
from superopt.te.eval.array_plan import array_program
from superopt.te.eval.domain import Reals
from superopt.te.eval.interpret import evaluate
from superopt.te.eval.prime_field import PrimeField
from superopt.te.expr.dtype import F32, F64
from superopt.te.expr.tensor import TensorType, compute, placeholder, ravel, unravel

MIB = 1 << 20


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def run(name: str, *arrays: np.ndarray, **attrs: object) -> Callable[[], list[np.ndarray]]:
    return lambda: evaluate_node(OPS[name], attrs, arrays, Reals(F64))  # type: ignore[arg-type]


def peak(work: Callable[[], object]) -> float:
    """MiB that numpy and Python hold at most while working, beyond what they held before."""
    work()  # plans are made once
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1] / MIB
    finally:
        tracemalloc.stop()


def seconds(work: Callable[[], object]) -> float:
    """The least of three."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


CONV = run("Conv", normal(1, 64, 56, 56), normal(64, 64, 3, 3), pads=(1, 1, 1, 1))
LARGE = run("Conv", normal(1, 64, 192, 192), normal(32, 64, 3, 3), pads=(1, 1, 1, 1))
POOL = run("MaxPool", normal(1, 64, 112, 112), kernel_shape=(3, 3), strides=(2, 2))
HEADS = normal(1, 12, 128, 64)
ATTENTION = run("Attention", HEADS, HEADS, HEADS, is_causal=1)
SOFTMAX = run("Softmax", normal(12, 128, 128))
LAYERS = run("LayerNormalization", normal(128, 768), normal(768), normal(768))
UP = run("ConvTranspose", normal(1, 16, 32, 32), normal(16, 16, 4, 4), strides=(2, 2))


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("work", "least"),
    [
        pytest.param(CONV, 1.0, id="conv: 115 million products"),
        pytest.param(LARGE, 4.0, id="large conv"),
        pytest.param(POOL, 0.5, id="max pool"),
        pytest.param(ATTENTION, 1.0, id="attention"),
        pytest.param(SOFTMAX, 0.2, id="softmax"),
        pytest.param(LAYERS, 0.2, id="layer norm"),
        pytest.param(UP, 1.0, id="transposed conv"),
    ],
)
def test_it_is_fast(work: Callable[[], object], least: float) -> None:
    assert seconds(work) < least


def test_a_convolution_never_lays_out_all_its_windows() -> None:
    # windows 162 MiB, products 5 GiB; operands and results in float64 below 60 MiB
    assert peak(LARGE) < 160


def test_a_pooling_lays_out_no_window() -> None:
    assert peak(POOL) < 30  # the input in float64 is 6 MiB


def test_looking_up_a_few_rows_copies_no_table() -> None:
    table, rows = normal(30522, 768), np.arange(128).reshape(1, 128)  # 89 MiB, 179 in float64
    gather = run("Gather", table, rows)
    np.testing.assert_array_equal(gather()[0][0], table[:128].astype(np.float64))
    assert peak(gather) < 4


def test_a_view_copies_nothing() -> None:
    x = np.random.default_rng(0).standard_normal((64, 64, 64))
    for name, attrs in (("Transpose", {"perm": (2, 0, 1)}), ("Reshape", {"shape": (32, 128, 64)})):
        (out,) = evaluate_node(OPS[name], attrs, [x])  # type: ignore[arg-type]
        assert np.shares_memory(out, x), name


@pytest.mark.parametrize(
    ("old", "new"), [((12, 10), (10, 12)), ((7, 6, 5), (35, 6)), ((2, 3, 4, 5), (5, 4, 3, 2))]
)
def test_every_reshape_is_one_view(old: tuple[int, ...], new: tuple[int, ...]) -> None:
    x = placeholder("x", TensorType(F32, old))
    t = compute(new, lambda *i: x[unravel(ravel(i, new), old)])
    assert len(array_program(t).boxes) == 1
    given = normal(*old)
    out = evaluate(t, {"x": given})
    np.testing.assert_array_equal(out, given.reshape(new))
    assert np.shares_memory(out, given)


@pytest.mark.one_in(0)
def test_many_operands_and_terms() -> None:
    parts = [normal(2, 3) for _ in range(600)]
    concat = run("Concat", *parts, axis=0)
    np.testing.assert_array_equal(concat()[0], np.concatenate(parts))
    assert seconds(concat) < 1.0
    running = run("CumSum", normal(4, 3000), axis=1)  # 36 million comparisons
    assert seconds(running) < 2.0
    assert peak(running) < 250


def test_the_field_convolves_too() -> None:
    field = PrimeField()
    x = field.random(TensorType(F32, (1, 32, 28, 28)), 1)
    w = field.random(TensorType(F32, (32, 32, 3, 3)), 2)

    def work() -> np.ndarray:
        (out,) = evaluate_node(OPS["Conv"], {}, [x, w], field, (F32, F32))
        return out

    assert work().shape == (2, 1, 32, 26, 26)
    assert seconds(work) < 2.0
