"""Products run on one thread of OpenBLAS, and stop where the time of the call is over."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from superopt import guard
from superopt.errors import OutOfTime
from superopt.ir.evaluate import evaluate_node
from superopt.ops import OPS
from superopt.te.eval import blas, domain, residues
from superopt.te.eval import contraction as contract
from superopt.te.eval.domain import Reals
from superopt.te.expr.dtype import F32, F64

THREADS = 2


@pytest.fixture
def threads() -> Iterator[Callable[[], int]]:
    """The function that says how many threads OpenBLAS has: THREADS, also after the test."""
    found = blas.openblas()
    if found is None:
        pytest.skip("numpy has another BLAS")
    get, put = found
    before = get()
    put(THREADS)
    yield get
    after = get()
    put(before)
    assert after == THREADS


PRODUCTS: dict[str, Callable[[], object]] = {
    "float64": lambda: Reals(F64).matmul(np.ones((3, 4)), np.ones((4, 5)), F64),
    "float32": lambda: Reals().matmul(np.ones((3, 4), "f4"), np.ones((4, 5), "f4"), F32),
    "residues": lambda: residues.matmul(
        np.ones((2, 64, 64), np.int64), np.ones((2, 64, 64), np.int64)
    ),
}


@pytest.mark.parametrize("product", PRODUCTS.values(), ids=PRODUCTS.keys())
def test_a_product_runs_on_one_thread(
    product: Callable[[], object], threads: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    own = np.matmul

    def matmul(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        seen.append(threads())
        return own(a, b)

    monkeypatch.setattr(np, "matmul", matmul)
    product()
    assert seen
    assert set(seen) == {1}


def test_the_last_of_several_callers_gives_the_threads_back(threads: Callable[[], int]) -> None:
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with blas.single_thread():
            inside.set()
            leave.wait(10)

    other = threading.Thread(target=hold)
    with blas.single_thread():
        other.start()
        assert inside.wait(10)
    assert threads() == 1
    leave.set()
    other.join()
    assert threads() == THREADS


def test_a_convolution_in_slabs_ends_with_its_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its windows are copied and multiplied slab by slab; none is started after the end."""
    monkeypatch.setattr(contract, "MAX_COPY_BYTES", 1 << 12)
    calls = 0

    def matmul(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        nonlocal calls
        calls += 1
        if calls == 2:
            guard.current_guard().deadline = time.monotonic() - 1
        return np.matmul(a, b)

    monkeypatch.setattr(domain, "matmul", matmul)
    image, kernel = np.ones((1, 4, 32, 32)), np.ones((4, 4, 5, 5))
    with guard.limit_call(60.0), pytest.raises(OutOfTime):
        evaluate_node(OPS["Conv"], {}, [image, kernel, None], Reals(F64))
    assert calls == 2
