"""Arrays for results: used again where nobody has them, and only there."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import helper

import superopt
from superopt.compilation.runtime.output_buffers import (
    MAX_KEPT_ARRAYS,
    MIN_REUSED_BYTES,
    output_allocator,
)
from tests.support.compilation.models import F, model

MANY = MIN_REUSED_BYTES // 4


def place(x: np.ndarray) -> int:
    return int(x.ctypes.data)


def test_what_was_dropped_is_used_again() -> None:
    new = output_allocator([((MANY,), np.dtype("f4")), ((3,), np.dtype("f4"))], ([], []))
    seen = set()
    for _ in range(5):
        x, small = new()
        assert x.shape == (MANY,)
        assert small.shape == (3,)
        seen.add(place(x))
        del x
    assert len(seen) == 1
    for _ in range(5):
        x, _ = new()  # while the last one is there
        seen.add(place(x))
    assert len(seen) == 2


HOLD: dict[str, Callable[[np.ndarray], Any]] = {
    "itself": lambda x: x,
    "a part": lambda x: x[10:12],
    "another type": lambda x: x.view(np.int32),
    "a buffer": memoryview,
    "DLPack": lambda x: np.from_dlpack(x),
    "a capsule": lambda x: x.__dlpack__(),
    "an iterator": lambda x: x.flat,
    "its base": lambda x: x.base,
}


@pytest.mark.parametrize("how", HOLD)
def test_what_somebody_has_is_not(how: str) -> None:
    new = output_allocator([((MANY,), np.dtype("f4"))], ([],))
    held = []
    for n in range(2 * MAX_KEPT_ARRAYS):
        (x,) = new()
        x[:] = n
        held.append(HOLD[how](x))
        first = place(x)
        del x
        (other,) = new()
        assert place(other) != first
        del other
    if how == "a part":
        assert [int(h[0]) for h in held] == list(range(2 * MAX_KEPT_ARRAYS))


def test_threads_get_results_of_their_own() -> None:
    nodes = [helper.make_node("Mul", ["x", "x"], ["y"])]
    exe = superopt.compile(model(nodes, {"x": (F, [MANY])}, ["y"]))
    wrong = []

    def call(number: int) -> None:
        x = np.full(MANY, number, np.float32)
        for _ in range(30):
            y = exe(x=x)["y"]
            if y[0] != number**2 or y[-1] != number**2:
                wrong.append(number)

    some = [threading.Thread(target=call, args=(n,)) for n in range(1, 5)]
    for t in some:
        t.start()
    for t in some:
        t.join(60)
    assert not wrong


def test_threads_never_get_an_array_that_another_has() -> None:
    new = output_allocator([((MANY,), np.dtype("f4"))], ([],))
    end, interval, shared = time.monotonic() + 2.0, sys.getswitchinterval(), []

    def work(number: int) -> None:
        while time.monotonic() < end and not shared:
            (x,) = new()
            x[0] = number
            for _ in range(20):
                pass
            if x[0] != number:
                shared.append(number)
            del x

    sys.setswitchinterval(1e-6)
    try:
        some = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for t in some:
            t.start()
        for t in some:
            t.join(60)
    finally:
        sys.setswitchinterval(interval)
    assert not shared


@pytest.mark.filterwarnings("ignore:Setting the shape:DeprecationWarning")  # from numpy 2.5 on
def test_what_was_done_to_one_is_not_done_to_the_next() -> None:
    new = output_allocator([((4, MANY), np.dtype("f4"))], ([],))
    (x,) = new()
    x.flags.writeable = False
    x.shape = (2, 2 * MANY)
    at = place(x)
    del x
    (y,) = new()
    assert (place(y), y.shape, y.flags.writeable) == (at, (4, MANY), True)
