"""Calls of several threads at the same time: each has memory of its own."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from onnx import helper, parser

import superopt
from superopt.errors import OutOfMemory
from superopt.plan.program import call_context
from tests.support.compilation.concurrent_calls import (
    THREADS,
    TIMEOUT_S,
    W,
    in_threads,
    mlp,
    programs,
    rows,
)
from tests.support.compilation.models import F, model, net, picture

CALLS = 1000  # of each thread


def same_in_threads(
    exe: superopt.Executable, feeds: Sequence[dict[str, np.ndarray]], calls: int
) -> None:
    """Check that calls of several threads give, bit by bit, what those of one thread give."""
    wanted = [exe.run(f) for f in feeds]

    def work(number: int) -> list[int]:
        order = np.random.default_rng(number).integers(len(feeds), size=calls)
        wrong = []
        for n in order:
            got = exe.run(feeds[n])
            if any(got[name].tobytes() != a.tobytes() for name, a in wanted[n].items()):
                wrong.append(int(n))
        return wrong

    assert in_threads(work) == [[]] * THREADS


@pytest.mark.parametrize("specialize", ["never", "eager"])
def test_threads_at_mixed_sizes_give_the_same_bits(specialize: Any) -> None:
    exe = superopt.compile(mlp(), specialize=specialize)
    sizes = (70, 3, 16, 200, 1, 64, 37, 100)
    same_in_threads(exe, [{"x": rows(n)} for n in sizes], CALLS)
    if specialize == "never":
        assert len(exe.size_classes.classes) == 1
    for p in programs(exe):
        assert len(p.idle) == len(p.live_contexts()) <= THREADS  # all were given back


def test_programs_of_several_threads_have_threads_for_each_call() -> None:
    exe = superopt.compile(mlp(), specialize="never", threads=2)
    same_in_threads(exe, [{"x": rows(n)} for n in (300, 70, 400)], 50)
    (p, *_) = programs(exe)
    assert p.work is not None
    contexts = p.live_contexts()
    assert len({id(c.pool) for c in contexts if c.pool is not None}) > 1 or len(contexts) == 1


def test_borders_of_zeros_stay_zeros_in_all_contexts() -> None:
    exe = superopt.compile(net(9), specialize="eager")
    same_in_threads(exe, [{"x": picture(n, 9)} for n in (1, 2, 3)], 60)


def test_kernels_around_a_part_in_onnxruntime() -> None:
    pytest.importorskip("onnxruntime")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Softmax", ["a"], ["b"]),
        helper.make_node("Unique", ["b"], ["u"]),
        helper.make_node("Exp", ["u"], ["e"]),
        helper.make_node("Mul", ["e", "u"], ["y"]),
    ]
    exe = superopt.compile(model(nodes, {"x": (F, [16, 32])}, ["y"], {"w": W}))
    assert exe.fallbacks()
    same_in_threads(exe, [{"x": rows(16) * n} for n in (1, 2, 3)], 60)


def test_a_model_with_a_branch() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[n,16] x) => (float[n,16] y)
        <float zero = {0.0}> {
            s = ReduceMean <keepdims = 0> (x)
            positive = Greater (s, zero)
            y = If (positive) <
                then_branch = t () => (float[?,?] a) { a = Mul (x, x) },
                else_branch = e () => (float[?,?] a) { b = Neg (x) a = Exp (b) }>
        }"""
    exe = superopt.compile(parser.parse_model(text))
    x = np.random.default_rng(0).standard_normal((9, 16)).astype(np.float32)
    same_in_threads(exe, [{"x": abs(x)}, {"x": -abs(x)}, {"x": abs(x[:4])}], 100)


def test_large_outputs_of_threads_are_their_own() -> None:
    """Arrays of 1 MB and more are used again where nobody has them."""
    nodes = [helper.make_node("Mul", ["x", "x"], ["y"])]
    exe = superopt.compile(model(nodes, {"x": (F, [1 << 18])}, ["y"]))

    def work(number: int) -> bool:
        x = np.full(1 << 18, number + 1, np.float32)
        return all((exe.run({"x": x})["y"] == (number + 1) ** 2).all() for _ in range(40))

    assert all(in_threads(work))


@pytest.mark.parametrize("rows_of_model", [64, "n"])
def test_two_calls_are_in_the_kernels_at_the_same_time(rows_of_model: int | str) -> None:
    """Both calls wait for each other between entering and leaving the code of the kernels."""
    exe = superopt.compile(mlp(rows_of_model), specialize="never")
    x = rows(64)
    wanted = exe.run({"x": x})["y"]
    (p,) = programs(exe)
    both, enter, tables = threading.Barrier(2), p.enter, []
    assert enter is not None

    def meet(arrays: Any, table: Any) -> None:
        both.wait(TIMEOUT_S)  # raises BrokenBarrierError if the other call does not come
        tables.append(table[0])
        enter(arrays, table)
        both.wait(TIMEOUT_S)

    p.enter = meet
    got = in_threads(lambda _: exe.run({"x": x})["y"], 2)
    assert len({*tables}) == 2, "both calls have the same memory"
    for y in got:
        np.testing.assert_array_equal(y, wanted)
    assert len(p.live_contexts()) == 2


@pytest.mark.parametrize("specialize", ["eager", "never"])
def test_calls_do_not_wait_for_a_thread_that_compiles(specialize: Any) -> None:
    """With "never" the first size has a class, and the second runs in ONNX Runtime."""
    exe = superopt.compile(mlp(), specialize=specialize)
    feeds = [{"x": rows(n)} for n in (64, 3)]
    wanted = [exe.run(f)["y"] for f in feeds]
    assert (len(exe.variants) == 1) == (specialize == "never")
    with exe.lock, ThreadPoolExecutor(1) as pool:  # as while a variant is compiled
        for n in (1, 0, 1, 1):  # also at other sizes than the last ones
            got = pool.submit(exe.run, feeds[n]).result(TIMEOUT_S)["y"]
            np.testing.assert_array_equal(got, wanted[n])


def test_an_error_in_one_call_leaves_the_others_right() -> None:
    exe = superopt.compile(mlp(), specialize="never")
    feeds = {n: {"x": rows(n)} for n in (70, 5)}
    wanted = {n: exe.run(f)["y"] for n, f in feeds.items()}
    bad: list[Any] = [{"x": rows(5).astype(np.float64)}, {"x": rows(5)[:, :31]}, {}, {"q": 1}]

    def work(number: int) -> tuple[int, int]:
        right, raised = 0, 0
        for n in range(200):
            if number % 2:
                with pytest.raises(superopt.UsageError):
                    exe.run(bad[(number + n) % len(bad)])
                raised += 1
            else:
                size = (70, 5)[n % 2]
                right += np.array_equal(exe.run(feeds[size])["y"], wanted[size])
        return right, raised

    assert in_threads(work) == [(0, 200) if n % 2 else (200, 0) for n in range(THREADS)]


def test_a_call_without_memory_leaves_the_others_right(monkeypatch: pytest.MonkeyPatch) -> None:
    exe = superopt.compile(mlp(), specialize="never")
    x, large = rows(64), rows(3000)
    wanted = exe.run({"x": x})["y"]
    own = call_context.aligned_zeros

    def allocate_if_small(size: int) -> np.ndarray:
        if size > 300_000:
            raise MemoryError("a test's limit")
        return own(size)

    monkeypatch.setattr(call_context, "aligned_zeros", allocate_if_small)

    def work(number: int) -> bool:
        for _ in range(100):
            if number == 0:
                with pytest.raises(OutOfMemory, match=r"(?s)no memory for a call.*a test's limit"):
                    exe.run({"x": large})
            elif not np.array_equal(exe.run({"x": x})["y"], wanted):
                return False
        return True

    assert all(in_threads(work))
    monkeypatch.undo()
    assert exe.run({"x": large})["y"].shape == (3000, 32)


def test_idle_contexts_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_context, "MAX_IDLE_BYTES", 0)
    exe = superopt.compile(mlp(64))
    x = rows(64)
    wanted = exe.run({"x": x})["y"]
    (p,) = programs(exe)
    both, enter = threading.Barrier(4), p.enter
    assert enter is not None

    def meet(arrays: Any, table: Any) -> None:
        both.wait(TIMEOUT_S)
        enter(arrays, table)

    p.enter = meet
    for y in in_threads(lambda _: exe.run({"x": x})["y"], 4):
        np.testing.assert_array_equal(y, wanted)
    assert len(p.idle) == len(p.live_contexts()) == p.max_idle == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.parametrize("threads", [1, 2])
def test_a_fork_during_a_call_has_contexts_of_its_own(threads: int) -> None:
    exe = superopt.compile(mlp(64), threads=threads)
    x = rows(64)
    wanted = exe.run({"x": x})["y"]
    (p,) = programs(exe)
    inside, end, enter = threading.Event(), threading.Event(), p.enter
    assert enter is not None

    def wait_then_enter(arrays: Any, table: Any) -> None:
        inside.set()
        end.wait(TIMEOUT_S)
        enter(arrays, table)

    p.enter = wait_then_enter
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(exe.run, {"x": x})
        inside.wait(TIMEOUT_S)
        p.enter = enter
        child = os.fork()
        if not child:
            os._exit(0 if np.array_equal(exe.run({"x": x})["y"], wanted) else 1)
        end.set()
        np.testing.assert_array_equal(other.result(TIMEOUT_S)["y"], wanted)
    assert os.waitpid(child, 0)[1] == 0
