"""Programs for classes of sizes: which sizes they admit, and what they compute there."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import superopt
from superopt.compilation.model.compile_class import compile_size_class
from superopt.compilation.model.compiler import Compiler
from superopt.errors import ModelError
from superopt.kernels.loops.schedule import IllegalSchedule
from tests.support.compilation.models import F, model, near, reference

pytest.importorskip("onnxruntime")
W = np.random.default_rng(0).standard_normal((32, 48)).astype(np.float32) / 8


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("SUPEROPT_CACHE", str(tmp_path / "cache"))


def mlp() -> onnx.ModelProto:
    """A product, a softmax and a product, whose intermediate results are in memory."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Softmax", ["a"], ["b"], axis=-1),
        helper.make_node("MatMul", ["b", "v"], ["c"]),
        helper.make_node("Add", ["c", "x"], ["y"]),
    ]
    return model(nodes, {"x": (F, ["n", 32])}, ["y"], {"w": W, "v": W.T.copy()})


def rows(n: int, seed: int = 0) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng((n, seed)).standard_normal((n, 32)).astype(np.float32)}


def check(exe: superopt.Executable, m: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> None:
    near(exe.run(dict(feeds)), reference(m, dict(feeds)))


def admitted_sizes(exe: superopt.Executable, sizes: range) -> list[int]:
    return [n for n in sizes if any(c.formulas.admits({"n": n}) for c in exe.size_classes.classes)]


@pytest.mark.parametrize("threads", [1, 2])
def test_one_class_computes_all_sizes_that_it_admits(threads: int) -> None:
    m = mlp()
    exe = superopt.compile(m, threads=threads)
    check(exe, m, rows(37))
    assert len(exe.size_classes.classes) == 1
    some = admitted_sizes(exe, range(1, 130))
    assert len(some) > 20
    for n in some:
        check(exe, m, rows(n))
    assert len(exe.size_classes.classes) == 1


@pytest.mark.parametrize("threads", [1, 2])
def test_results_stay_when_sizes_alternate(threads: int) -> None:
    """Memory grows for larger sizes, and serves smaller ones; outputs are new arrays."""
    m = mlp()
    exe = superopt.compile(m, threads=threads)
    exe.run(rows(64))
    held = []
    for k, n in enumerate([64, 500, 65, 3000, 64, 65, 501, 3000, 70]):
        found = exe.run(rows(n, k))
        held.append((n, k, found, {name: x.copy() for name, x in found.items()}))
    for n, k, found, copies in held:
        assert all(np.array_equal(found[name], copies[name]) for name in found)
        near(found, reference(m, rows(n, k)))


def test_two_models_run_in_several_threads_at_once() -> None:
    """Each has a pool of threads; calls of one model alternate between sizes."""
    m = mlp()
    pair = [superopt.compile(m, threads=2) for _ in range(2)]
    for exe in pair:
        exe.run(rows(64))
    some = [n for n in (64, 65, 96, 130, 257, 700) if n in admitted_sizes(pair[0], range(800))]
    assert len(some) > 2
    wanted = {n: reference(m, rows(n)) for n in some}
    failures: list[BaseException] = []

    def call(exe: superopt.Executable, seed: int) -> None:
        order = np.random.default_rng(seed).choice(some, 150)
        try:
            for n in map(int, order):
                near(exe.run(rows(n)), wanted[n])
        except BaseException as e:  # pytest sees those of its own thread only
            failures.append(e)

    calls = [threading.Thread(target=call, args=(exe, k)) for k in range(2) for exe in pair]
    for t in calls:
        t.start()
    for t in calls:
        t.join()
    assert not failures
    assert all(len(exe.size_classes.classes) == 1 for exe in pair)


def test_a_class_admits_no_size_of_zero() -> None:
    m = mlp()
    exe = superopt.compile(m, threads=1)
    exe.run(rows(5))
    assert admitted_sizes(exe, range(2)) in ([], [1])
    assert exe.run({"x": np.zeros((0, 32), np.float32)})["y"].shape == (0, 32)


def test_a_length_below_the_window_is_an_error() -> None:
    """The convolution would have a negative length there."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"]),
        helper.make_node("ReduceSum", ["a"], ["y"]),
    ]
    w = np.ones((8, 4, 5), np.float32)
    m = model(nodes, {"x": (F, [1, 4, "n"])}, ["y"], {"w": w})
    exe = superopt.compile(m, threads=1)
    check(exe, m, {"x": np.ones((1, 4, 40), np.float32)})
    assert not admitted_sizes(exe, range(1, 4))
    with pytest.raises(ModelError):
        exe.run({"x": np.ones((1, 4, 3), np.float32)})


def sliced_mean() -> onnx.ModelProto:
    """Its extent is a function of a function of the size."""
    nodes = [
        helper.make_node("Slice", ["x", "begin", "end", "axis", "step"], ["a"]),
        helper.make_node("ReduceMean", ["a"], ["y"], axes=[0]),
    ]
    numbers = {"begin": 2, "end": 2**31, "axis": 0, "step": 3}
    weights = {k: np.array([v], np.int64) for k, v in numbers.items()}
    return model(nodes, {"x": (F, ["n"])}, ["y"], weights)


def squeezed_sum() -> onnx.ModelProto:
    nodes = [
        helper.make_node("ReduceSum", ["x", "axis"], ["a"]),
        helper.make_node("Mul", ["a", "x"], ["b"]),
        helper.make_node("Transpose", ["b"], ["y"], perm=[1, 0]),
    ]
    return model(nodes, {"x": (F, ["n", 5])}, ["y"], {"axis": np.array([0], np.int64)})


@pytest.mark.parametrize(
    ("make", "shape"), [(sliced_mean, lambda n: (n,)), (squeezed_sum, lambda n: (n, 5))]
)
@pytest.mark.parametrize("example", [1, 9])
def test_sizes_of_one_and_functions_of_sizes(
    make: Callable[[], onnx.ModelProto], shape: Callable[[int], tuple[int, ...]], example: int
) -> None:
    m = make()
    exe = superopt.compile(m, threads=1)
    for n in (example, 1, 2, 3, 4, 9, 10, 40, 1):
        if n > 2 or make is squeezed_sum:
            x = np.random.default_rng(n).standard_normal(shape(n)).astype(np.float32)
            check(exe, m, {"x": x})


def test_indices_beyond_a_tensor_have_no_class() -> None:
    """The partition leaves such nodes to onnxruntime, which rejects them."""
    inputs = {"x": (F, ["n", 3]), "i": (onnx.TensorProto.INT64, ["k", 2])}
    m = model([helper.make_node("GatherElements", ["x", "i"], ["y"], axis=1)], inputs, ["y"], {})

    def feeds(n: int, k: int) -> dict[str, np.ndarray]:
        return {"x": rows(n)["x"][:, :3], "i": np.ones((k, 2), np.int64)}

    exe = superopt.compile(m, specialize="never")
    check(exe, m, feeds(4, 4))
    (made,) = exe.size_classes.classes
    assert made.formulas.admits({"n": 40, "k": 30})
    assert not made.formulas.admits({"n": 1, "k": 4})
    with pytest.raises(ModelError):
        exe.run(feeds(1, 4))


@pytest.mark.parametrize("specialize", ["never", "eager"])
def test_a_table_that_is_too_short_is_an_error(specialize: Any) -> None:
    """Positions of a sequence are rows of a table, which a slice cuts to its length."""
    n_rows = {"axes": np.array([0]), "starts": np.array([0]), "table": W.T[:40, :32].copy()}
    nodes = [
        helper.make_node("Shape", ["x"], ["n"], end=1),
        helper.make_node("Slice", ["table", "starts", "n", "axes"], ["positions"]),
        helper.make_node("Add", ["x", "positions"], ["y"]),
    ]
    m = model(nodes, {"x": (F, ["n", 32])}, ["y"], n_rows)
    for first in (40, 41):  # rows
        exe = superopt.compile(m, specialize=specialize)
        for n in (first, 30, 40, 41, 1, 100):
            if n <= 40:
                check(exe, m, rows(n))
            else:
                with pytest.raises(ModelError):
                    exe.run(rows(n))


def test_a_class_ends_where_onnxruntime_is_faster() -> None:
    """A kernel computes each prefix sum anew."""
    node = helper.make_node("CumSum", ["x", "axis"], ["y"])
    m = model([node], {"x": (F, ["n", "m"])}, ["y"], {"axis": np.array(1)})
    exe = superopt.compile(m, specialize="never")
    exe.run({"x": np.ones((16, 16), np.float32)})
    (made,) = exe.size_classes.classes
    assert not made.formulas.admits({"n": 16, "m": 60})


MISTAKES = [AttributeError, TypeError, AssertionError, KeyError, StopIteration, RuntimeError]
UNSUPPORTED = [NotImplementedError, IllegalSchedule, ZeroDivisionError, MemoryError]


@pytest.mark.parametrize("error", MISTAKES + UNSUPPORTED)
def test_the_model_runs_whatever_symbolic_planning_raises(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A warning says so if an error does not say that something is not supported."""
    caplog.set_level(logging.DEBUG, "superopt")

    def fail(*_: object) -> None:
        raise error("not for symbolic sizes")

    m = mlp()
    exe = superopt.compile(m, threads=1)
    monkeypatch.setattr(type(exe.compiler.generator), "compile_for_classes", fail)
    check(exe, m, rows(6))
    assert not exe.size_classes.is_supported
    assert not exe.size_classes.classes
    text = f"{error.__name__}: " + str(error("not for symbolic sizes"))
    assert any(r.getMessage() == f"no program for several sizes: {text}" for r in caplog.records)
    about = [r for r in caplog.records if r.name.startswith("superopt.") and r.exc_info]
    warned = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    if error in UNSUPPORTED:
        assert not warned
        assert not about
        return
    assert warned == [f"an error in superopt: no program for several sizes: {text}"]
    (traced,) = about
    assert traced.levelno == logging.DEBUG
    assert traced.exc_info is not None
    assert traced.exc_info[0] is error


def test_a_part_that_planning_does_not_support_by_mistake_is_warned_about(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The parts before and after an operator of ONNX Runtime have kernels of their own."""
    w = np.random.default_rng(0).standard_normal((32, 4096)).astype(np.float32) / 8
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Unique", ["a"], ["b"], axis=0),
        helper.make_node("MatMul", ["b", "v"], ["y"]),
    ]
    m = model(nodes, {"x": (F, ["n", 32])}, ["y"], {"w": w, "v": w.T.copy()})
    exe = superopt.compile(m, threads=1, specialize="never")

    def fail(*_: object) -> None:
        raise AttributeError("no such field")

    monkeypatch.setattr(type(exe.compiler.generator), "compile_for_classes", fail)
    check(exe, m, rows(6))
    warned = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert any("AttributeError: no such field" in text for text in warned)


def test_a_class_is_right_where_its_guards_say_so_only() -> None:
    """Each size is computed by the classes of several examples."""
    m = mlp()
    exe = superopt.compile(m, threads=1)
    compiler: Compiler = exe.compiler
    made = {n: compile_size_class(compiler, {"n": n}) for n in (1, 2, 7, 17, 64, 300)}
    for example, found in made.items():
        assert found is not None
        assert found.formulas.admits({"n": example})
        for n in (1, 2, 3, 6, 7, 8, 9, 15, 16, 17, 33, 64, 65, 129, 300):
            if found.formulas.admits({"n": n}):
                variant = found.variant({"n": n})
                assert variant is not None
                out = exe.run_variant(variant, exe.input_arrays(rows(n)), on_device=False)
                near(out, reference(m, rows(n)))


def test_the_reason_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    exe = superopt.compile(mlp(), threads=1)
    with caplog.at_level("INFO", "superopt.compile"):
        assert compile_size_class(exe.compiler, {"n": 6}) is not None
        assert compile_size_class(exe.compiler, {"n": 0}) is not None
    assert "a program for all sizes with 1 <= s0" in caplog.text
    assert "a program for all sizes with (s0 == 0)" in caplog.text
