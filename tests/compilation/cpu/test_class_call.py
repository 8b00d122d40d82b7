"""Calls at sizes that are new in each call: they do not take the way of first calls."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import superopt
from superopt.compilation.cpu.class_function import build_class_function
from superopt.compilation.frontend.input_arrays import InputPort, ShapePattern
from superopt.compilation.model.executable import Executable
from superopt.compilation.model.shape_policy import ShapePolicy
from superopt.compilation.model.steps import ModelBinding
from superopt.compilation.runtime.output_buffers import MIN_REUSED_BYTES
from superopt.errors import UsageError
from superopt.plan.program.size_formulas import SizeFormulas
from tests.support.compilation.models import F, model, near, reference
from tests.support.onnx_io.decoder_operators import Case

pytest.importorskip("onnxruntime")
W = np.random.default_rng(0).standard_normal((64, 96)).astype(np.float32)


def net() -> onnx.ModelProto:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Add", ["a", "c"], ["y"]),
    ]
    return model(nodes, {"x": (F, ["n", 64]), "c": (F, ["n", 1])}, ["y"], {"w": W})


def feeds(n: int, other: int | None = None) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(n)
    c = rng.standard_normal((n if other is None else other, 1)).astype(np.float32)
    return {"x": rng.standard_normal((n, 64)).astype(np.float32), "c": c}


def cache() -> onnx.ModelProto:
    """Rows that are written into a cache at a position."""
    case = Case("cache")
    case.inputs = {"past": (1, "capacity", 64), "new": (1, "n", 64)}
    case.integer_inputs = {"at": (TensorProto.INT64, (1,))}
    case.outputs = {"y": case.inputs["past"]}
    case.add("TensorScatter", ["past", "new", "at"], ["y"], axis=1)
    return case.model()


def cache_feeds(capacity: int, n: int, at: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(n)
    past, new = (rng.standard_normal((1, k, 64)).astype(np.float32) for k in (capacity, n))
    return {"past": past, "new": new, "at": np.array([at])}


def check(exe: Executable, m: onnx.ModelProto, given: dict[str, np.ndarray]) -> None:
    near(exe.run(given), reference(m, given))


@pytest.fixture
def checked_inputs(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The inputs of calls that took the way of first calls."""
    out: list[dict[str, Any]] = []
    original = Executable._run_checked

    def record(self: Executable, given: dict[str, Any]) -> Any:
        out.append(given)
        return original(self, given)

    monkeypatch.setattr(Executable, "_run_checked", record)
    return out


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPEROPT_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("specialize", ["never", "background"])
def test_new_sizes_of_a_class_take_the_short_way(
    specialize: Any, checked_inputs: list[dict[str, Any]]
) -> None:
    exe, m = superopt.compile(net(), specialize=specialize), net()
    check(exe, m, feeds(100))
    for n in (*range(64, 90), *range(64, 90), *range(300, 310)):
        check(exe, m, feeds(n))
    assert len(checked_inputs) == 1
    assert len(exe.size_classes.classes) == 1


def test_sizes_outside_of_the_classes_take_the_short_way_to_onnxruntime(
    checked_inputs: list[dict[str, Any]],
) -> None:
    exe, m = superopt.compile(net(), specialize="never"), net()
    for n in (100, 3, 200, 1, 3, 300, 2, 1, 100):
        check(exe, m, feeds(n))
    assert [len(given["x"]) for given in checked_inputs] == [100, 3]  # the first loads ONNX Runtime
    assert {n for ((_, n),) in exe.shape_policy.fallback_times} == {1, 2, 3}
    times = exe.shape_policy.fallback_times.values()
    assert exe.shape_policy.fallback_seconds == pytest.approx(sum(times))


def test_sizes_that_contradict_are_errors_as_before() -> None:
    exe, m = superopt.compile(net(), specialize="never"), net()
    found = []
    for first in (False, True):  # also after calls by the short way
        if first:
            for n in (100, 101, 102):
                check(exe, m, feeds(n))
        for given in (
            feeds(80, 81),
            {**feeds(80), "x": np.zeros((80, 63), np.float32)},
            {**feeds(80), "x": np.zeros((80, 64, 1), np.float32)},
            {**feeds(80), "x": np.zeros((80, 64))},
            {"x": feeds(80)["x"]},
            {**feeds(80), "d": feeds(80)["c"]},
        ):
            with pytest.raises(superopt.errors.SuperoptError) as e:
                exe.run(given)
            found.append(str(e.value))
    assert found[:6] == found[6:]


def test_values_beyond_limits_are_errors_at_new_sizes(checked_inputs: list[dict[str, Any]]) -> None:
    exe = superopt.compile(cache(), specialize="never")
    for n in (70, 80, 90, 80, 80):
        given = cache_feeds(200, n, 100)
        y = exe.run(given)["y"]
        np.testing.assert_array_equal(y[:, 100 : 100 + n], given["new"])
    assert len(checked_inputs) == 1
    for n in (80, 75):  # a known size, and a new one
        with pytest.raises(UsageError, match=f"'at' has the value {201 - n}"):
            exe.run(cache_feeds(200, n, 201 - n))


def test_inputs_that_are_not_contiguous_are_copied() -> None:
    exe, m = superopt.compile(net(), specialize="never"), net()
    for n in (100, 101, 102):
        given = feeds(n)
        check(exe, m, {**given, "x": np.asfortranarray(given["x"])})
        check(exe, m, {**given, "c": np.repeat(given["c"], 2, axis=1)[:, ::2]})


def test_a_program_of_another_process_is_found_at_the_second_call(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(net(), path)
    first = superopt.compile(path, shapes=())
    check(first, net(), feeds(100))
    first.runnable({"n": 200})  # compiled for this size alone
    exe = superopt.compile(path, shapes=())
    for n in (100, 200, 200):
        check(exe, net(), feeds(n))
    assert {n: v.is_of_class for ((_, n),), v in exe.variants.items()} == {100: True, 200: False}
    check(exe, net(), feeds(200))


def test_sizes_that_stay_in_onnxruntime_are_not_run_by_the_class() -> None:
    exe, m = superopt.compile(net(), specialize="never"), net()
    for n in (100, 3):
        check(exe, m, feeds(n))
    exe.shape_policy.keep_in_fallback((("n", 120),), "a test")
    for n in (119, 120, 120, 121):
        check(exe, m, feeds(n))
    assert {n for ((_, n),) in exe.shape_policy.fallback_times} == {3, 120}


def test_large_outputs_are_reused_at_other_sizes() -> None:
    exe, m = superopt.compile(net(), specialize="never"), net()
    places, kept = set(), 3
    for n in range(4000, 4010):
        given = feeds(n)
        y = exe.run(given)["y"]
        near({"y": y}, reference(m, given))
        places.add(y.ctypes.data)
        del y
    assert len(places) <= kept
    held = exe.run(feeds(4001))["y"]
    before = held.copy()
    exe.run(feeds(4002))
    np.testing.assert_array_equal(held, before)


def test_threads_call_at_sizes_of_their_own() -> None:
    exe, m = superopt.compile(net(), specialize="never"), net()
    check(exe, m, feeds(100))
    wanted = {n: exe.run(feeds(n))["y"] for n in range(64, 264)}
    exe.last_call = None
    failed: list[int] = []

    def work(seed: int) -> None:
        for n in np.random.default_rng(seed).permutation([*wanted]):
            if not np.array_equal(exe.run(feeds(int(n)))["y"], wanted[int(n)]):
                failed.append(int(n))

    workers = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for each in workers:
        each.start()
    for each in workers:
        each.join(240)
    assert not any(each.is_alive() for each in workers)
    assert not failed


def port(name: str, *shape: int | str) -> InputPort:
    return InputPort(name, np.dtype("f4"), shape, "f32")


def test_a_pattern_of_shapes_has_the_sizes() -> None:
    found = ShapePattern.of_ports([port("x", "n", 3, "a"), port("y", "a", "n"), port("z")])
    assert found is not None
    assert found.sizes(((4, 3, 5), (5, 4), ())) == (("a", 5), ("n", 4))
    for shapes in (
        ((4, 2, 5), (5, 4), ()),
        ((4, 3, 5), (4, 5), ()),
        ((4, 3, 5), (5, 4), (1,)),
        ((4, 3), (5, 4), ()),
    ):
        assert found.sizes(shapes) is None
    assert ShapePattern.of_ports([port("x", "2*n")]) is None


def test_the_sum_of_times_in_onnxruntime_follows_what_is_dropped() -> None:
    policy = ShapePolicy(compiles_classes=True)
    for n in range(4):
        policy.add_fallback_time((("n", n),), float(n))
    policy.reset_fallback_time((("n", 3),))
    policy.reset_fallback_time((("n", 9),))
    assert policy.fallback_seconds == 3.0
    policy.add_class()
    assert policy.fallback_seconds == 0.0


FORMULAS = SizeFormulas(
    names=("n", "m"),
    guards=("1 <= s0", "12 // s1 == 4"),
    words=("s0", "t0", "(t0 + 1)"),
    memory_bytes="(t0 * 4)",
    workspace_bytes="64",
    output_shapes=(("s0", "t0"), ()),
    shared=("(s0 * s1)",),
)


class RecordedProgram:
    """It records its calls, and writes the number of the call to the second output."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[np.ndarray], int, int]] = []

    def call(self, arrays: tuple[np.ndarray, ...], memory: int, workspace: int) -> None:
        self.calls.append((list(arrays), memory, workspace))
        arrays[3][...] = len(self.calls)


@pytest.fixture
def program() -> RecordedProgram:
    return RecordedProgram()


def function(program: RecordedProgram, kept: Any = ((), ())) -> Any:
    binding = ModelBinding((1, 0), {"count": 1, "y": 0, "again": 1})
    dtypes = np.dtype("f4"), np.dtype("i8")
    return build_class_function(program, FORMULAS, dtypes, binding, kept)  # type: ignore[arg-type]


def test_a_call_evaluates_the_formulas(program: RecordedProgram) -> None:
    x, z = np.zeros(3), np.ones(2)
    out = function(program)({"m": 3, "n": 5}, [x, z])
    ((given, memory, workspace),) = program.calls
    assert given[0] is z
    assert given[1] is x
    assert given[2] is out["y"]
    np.testing.assert_array_equal(given[4], np.array([5, 15, 16]))
    assert (memory, workspace) == (60, 64)
    assert [*out] == ["count", "y", "again"]
    assert out["y"].shape == (5, 15)
    assert out["y"].dtype == np.float32
    assert out["count"] is out["again"]
    assert out["count"] == 1


@pytest.mark.parametrize(
    "sizes",
    [{"n": 0, "m": 3}, {"n": 5, "m": 4}, {"n": 5, "m": 0}, {"n": 5}, {"n": 5, "m": 3, "k": 1}],
)
def test_sizes_of_another_class_run_nothing(sizes: Any, program: RecordedProgram) -> None:
    assert function(program)(sizes, [np.zeros(3), np.ones(2)]) is None
    assert not program.calls


def test_only_large_outputs_are_kept(program: RecordedProgram) -> None:
    kept: tuple[list[np.ndarray], ...] = ([], [])
    run = function(program, kept)
    small, large = 8, int((MIN_REUSED_BYTES // 12) ** 0.5) + 1
    for n, count in ((small, 0), (large, 1)):
        assert run({"n": n, "m": 3}, [np.zeros(3), np.ones(2)])["y"].shape == (n, 3 * n)
        assert len(kept[0]) == count
    assert not kept[1]
