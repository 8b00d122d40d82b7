"""`close` and `with`: what they free, which calls end first, and what a call says afterwards."""

from __future__ import annotations

import gc
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import superopt
from tests.support.compilation.concurrent_calls import TIMEOUT_S, mlp, programs, rows
from tests.support.compilation.models import F, model

CLOSED = "the compiled model is closed"


@pytest.fixture
def no_collector() -> Iterator[None]:
    """References alone free what is closed."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.ci
@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("rows_of_model", [64, "n"])
@pytest.mark.parametrize("threads", [1, 2])
def test_close_frees_memory_code_and_threads(
    rows_of_model: int | str, threads: int, tmp_path: Path
) -> None:
    onnx.save(mlp(rows_of_model), str(tmp_path / "m.onnx"))
    exe = superopt.compile(tmp_path / "m.onnx", threads=threads)
    wanted = exe.run({"x": rows(64)})["y"]
    call = exe.bind(inputs={"x": rows(64)})
    call()
    (p,) = programs(exe)
    held = [weakref.ref(c) for c in p.live_contexts()]
    held += [weakref.ref(a) for a in p.constants.arrays]
    held += [weakref.ref(p.engine)]
    pools = [t for c in p.live_contexts() if c.pool is not None for t in c.pool.threads]
    assert len(pools) == threads - 1
    del p
    exe.close()
    assert [ref() for ref in held] == [None] * len(held)
    assert not any(t.is_alive() for t in pools)
    assert wanted.shape == (64, 32)  # results remain


def closed_model() -> superopt.Executable:
    with superopt.compile(mlp()) as exe:
        exe.run({"x": rows(64)})
    return exe


AFTER: dict[str, Callable[[superopt.Executable], object]] = {
    "run": lambda exe: exe.run({"x": rows(64)}),
    "other sizes": lambda exe: exe(x=rows(5)),
    "bind": lambda exe: exe.bind(inputs={"x": rows(64)}),
    "save": lambda exe: exe.save("x.superopt"),
    "export": lambda exe: exe.export("x"),
    "profile": lambda exe: exe.profile({"x": rows(64)}),
    "fallbacks": lambda exe: exe.fallbacks(),
    "fallbacks at sizes": lambda exe: exe.fallback_nodes({"n": 64}),
    "tune": lambda exe: exe.tune({"n": 64}),
    "model": lambda exe: exe.model,
}


@pytest.mark.parametrize("what", AFTER)
def test_a_closed_model_says_so(what: str) -> None:
    exe = closed_model()
    with pytest.raises(superopt.UsageError, match=CLOSED) as found:
        AFTER[what](exe)
    assert found.value.todo == "compile or load it again"


def test_a_model_may_be_closed_again() -> None:
    exe = closed_model()
    exe.close()
    assert "closed" in repr(exe)


def test_an_error_in_the_block_closes_and_is_raised() -> None:
    with pytest.raises(ZeroDivisionError), superopt.compile(mlp(64)) as exe:
        raise ZeroDivisionError
    with pytest.raises(superopt.UsageError, match=CLOSED):
        exe.run({"x": rows(64)})


def test_bound_calls_are_closed() -> None:
    exe = superopt.compile(mlp(64))
    call = exe.bind(inputs={"x": rows(64)})
    y = call()["y"].copy()
    exe.close()
    with pytest.raises(superopt.UsageError, match=CLOSED):
        call()
    np.testing.assert_array_equal(call.outputs["y"], y)


@pytest.mark.parametrize("bound", [False, True])
def test_running_calls_finish_before_close_returns(bound: bool) -> None:
    exe = superopt.compile(mlp(64))
    x = rows(64)
    wanted = exe.run({"x": x})["y"]
    call = exe.bind(inputs={"x": x}) if bound else lambda: exe.run({"x": x})
    (p,) = programs(exe)
    inside, end, enter = threading.Event(), threading.Event(), p.enter
    assert enter is not None

    def wait_then_enter(arrays: Any, table: Any) -> None:
        inside.set()
        assert end.wait(TIMEOUT_S)
        enter(arrays, table)

    p.enter = wait_then_enter
    with ThreadPoolExecutor(2) as pool:
        running = pool.submit(call)
        assert inside.wait(TIMEOUT_S)
        closing = pool.submit(exe.close)
        while not exe.is_closed:
            assert not closing.done()
        with pytest.raises(superopt.UsageError, match=CLOSED):
            exe.run({"x": x})
        assert not closing.done()
        end.set()
        np.testing.assert_array_equal(running.result(TIMEOUT_S)["y"], wanted)
        closing.result(TIMEOUT_S)


def test_a_signal_handler_may_close_the_model_that_it_interrupts() -> None:
    exe = superopt.compile(mlp(64))
    x = rows(64)
    wanted = exe.run({"x": x})["y"]
    (p,) = programs(exe)
    enter = p.enter
    assert enter is not None

    def interrupt(arrays: Any, table: Any) -> None:
        signal.raise_signal(signal.SIGUSR1)
        enter(arrays, table)

    p.enter = interrupt
    old = signal.signal(signal.SIGUSR1, lambda *_: exe.close())
    try:
        np.testing.assert_array_equal(exe.run({"x": x})["y"], wanted)
    finally:
        signal.signal(signal.SIGUSR1, old)
    assert exe.is_closed


def calls_until_closed(exe: superopt.Executable, start: threading.Barrier, number: int) -> str:
    """Return the error that ends the calls, after right results."""
    feeds = [{"x": rows(n)} for n in (64, 70)]
    wanted = [exe.run(f)["y"] for f in feeds]
    start.wait(TIMEOUT_S)
    for n in range(10_000):
        try:
            y = exe.run(feeds[(n + number) % 2])["y"]
        except superopt.UsageError as e:
            return e.what
        np.testing.assert_array_equal(y, wanted[(n + number) % 2])
    return "it was not closed"


@pytest.mark.parametrize("_", range(5))
def test_many_threads_call_while_one_closes(_: int) -> None:
    exe = superopt.compile(mlp(), specialize="never")
    start = threading.Barrier(5)
    with ThreadPoolExecutor(4) as pool:
        some = [pool.submit(calls_until_closed, exe, start, n) for n in range(4)]
        start.wait(TIMEOUT_S)
        exe.close()
        assert {s.result(TIMEOUT_S) for s in some} == {CLOSED}
    assert not exe.variants
    assert exe.last_call is None


def test_a_model_in_onnxruntime_is_closed() -> None:
    pytest.importorskip("onnxruntime")
    nodes = [helper.make_node("Unique", ["x"], ["y"])]
    exe = superopt.compile(model(nodes, {"x": (F, [4])}, ["y"]))
    exe.run({"x": np.ones(4, np.float32)})
    exe.close()
    with pytest.raises(superopt.UsageError, match=CLOSED):
        exe.run({"x": np.ones(4, np.float32)})
