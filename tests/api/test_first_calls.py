"""The first calls of a model in a file: ONNX Runtime runs them while a child process compiles."""

from __future__ import annotations

import gc
import os
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import superopt
from superopt.api import open_in_child
from superopt.compilation.fallback.fallback_cache import FallbackCache
from superopt.compilation.model import specialize
from superopt.compilation.model.compiler import Compiler
from superopt.compilation.runtime import background_worker, child_process
from superopt.errors import ModelError
from tests.support.compilation.cache import record_compilations
from tests.support.compilation.models import F, model, near

onnxruntime = pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.skipif(
    not child_process.CAN_RUN_CHILDREN, reason="no child processes on this platform"
)
W = np.random.default_rng(0).standard_normal((64, 96)).astype(np.float32)


def net(first_dim: str | int = "n") -> onnx.ModelProto:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Softmax", ["a"], ["y"], axis=-1),
    ]
    return model(nodes, {"x": (F, [first_dim, 64])}, ["y"], {"w": W})


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPEROPT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    out = tmp_path / "m.onnx"
    onnx.save(net(), out)
    return out


@pytest.fixture
def compiled_here(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, int]]:
    """The sizes for which this process compiles."""
    return record_compilations(monkeypatch)


@pytest.fixture
def faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled code is always measured to be twice as fast."""
    monkeypatch.setattr(specialize, "_measure_pair", lambda *_: (1.0, 2.0))


def rows(n: int) -> np.ndarray:
    return np.random.default_rng(n).standard_normal((n, 64)).astype(np.float32)


def check(exe: superopt.Executable, n: int) -> None:
    a = rows(n).astype(np.float64) @ W
    e = np.exp(a - a.max(1, keepdims=True)) if n else a
    near(exe(x=rows(n)), {"y": (e / e.sum(1, keepdims=True)).astype(np.float32)})


@pytest.mark.usefixtures("faster")
def test_no_call_compiles(path: Path, compiled_here: list[dict[str, int]]) -> None:
    exe = superopt.compile(path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    first = exe(x=rows(100))["y"]
    assert np.array_equal(first, session.run(None, {"x": rows(100)})[0])
    assert exe.wait(120)
    for n in (100, 99, 300, 100):
        check(exe, n)
    assert all(v.is_of_class for v in exe.variants.values())
    assert len(exe.size_classes.classes) == 1
    assert not compiled_here
    assert not exe.has_compiler


@pytest.mark.parametrize(("seconds", "is_used"), [(1.05, True), (1.2, False)])
def test_a_class_is_used_unless_onnxruntime_is_clearly_faster(
    seconds: float, is_used: bool, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(specialize, "_measure_pair", lambda *_: (seconds, 1.0))
    exe = superopt.compile(path)
    check(exe, 100)
    assert exe.wait(120)
    for n in (100, 120):
        check(exe, n)
    assert bool(exe.size_classes.classes) == bool(exe.variants) == is_used
    assert exe.size_classes.is_slower({"n": 120}) != is_used


@pytest.mark.usefixtures("faster")
def test_one_child_compiles_the_classes_of_all_calls(
    path: Path, monkeypatch: pytest.MonkeyPatch, compiled_here: list[dict[str, int]]
) -> None:
    started: list[str] = []
    start = child_process.start_child
    monkeypatch.setattr(
        child_process, "start_child", lambda module: started.append(module) or start(module)
    )
    exe = superopt.compile(path)
    for n in (100, 2, 30):
        check(exe, n)
    assert exe.wait(120)
    assert all(exe.size_classes.admits({"n": n}) for n in range(1, 200))
    assert len(started) == 1
    assert not compiled_here


def test_another_process_that_called_nothing_has_no_classes(
    path: Path, compiled_here: list[dict[str, int]]
) -> None:
    """The second one knows the model's interface, and does not wait for its child."""
    superopt.compile(path).close()
    exe = superopt.compile(path)
    assert exe.waiting_child is not None
    for n in (100, 77):
        check(exe, n)
    assert exe.wait(120)
    check(exe, 100)
    assert exe.size_classes.admits({"n": 100})
    assert not compiled_here


def test_classes_in_the_cache_need_no_child(path: Path) -> None:
    exe = superopt.compile(path)
    check(exe, 100)
    assert exe.wait(120)
    again = superopt.compile(path)
    assert again.waiting_child is None
    assert again.shape_policy.fallback is None
    check(again, 90)
    assert again.variants[(("n", 90),)].is_of_class


@pytest.mark.parametrize(
    "options",
    [
        {"shapes": ()},
        {"shapes": {"n": 100}},
        {"specialize": "never"},
        {"specialize": "eager"},
        {"max_memory": "8GB"},
        {"target": "reference"},
    ],
)
def test_options_with_which_this_process_compiles(path: Path, options: dict[str, Any]) -> None:
    exe = superopt.compile(path, **options)
    assert exe.waiting_child is None
    check(exe, 100)
    assert (("n", 100),) in exe.variants
    assert exe.shape_policy.fallback is None


def default_model() -> onnx.ModelProto:
    node = helper.make_node("Add", ["x", "b"], ["y"])
    out = model([node], {"x": (F, ["n", 64])}, ["y"], {"b": W[:, 0].copy()})
    out.graph.input.append(helper.make_tensor_value_info("b", F, [64]))
    return out


OTHERS = {"default": default_model(), "5": net(5), "n + 1": net("n + 1")}


@pytest.mark.parametrize("kind", OTHERS)
def test_models_that_this_process_compiles(kind: str, tmp_path: Path) -> None:
    onnx.save(OTHERS[kind], tmp_path / "other.onnx")
    exe = superopt.compile(tmp_path / "other.onnx")
    assert exe.waiting_child is None
    assert not exe.shape_policy.first_in_background


def test_a_child_that_cannot_open_the_model(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_in_child, "CHILD_MODULE", "superopt.no_such_module")
    exe = superopt.compile(path)
    assert exe.waiting_child is None
    check(exe, 100)
    assert exe.variants[(("n", 100),)].is_of_class


def test_no_memory_for_a_child(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(module: str) -> None:
        raise OSError("no memory")

    monkeypatch.setattr(child_process, "start_child", fails)
    exe = superopt.compile(path)
    check(exe, 100)
    assert exe.variants[(("n", 100),)].is_of_class


@pytest.mark.usefixtures("faster")
def test_a_child_that_ended_before_the_first_call(path: Path) -> None:
    exe = superopt.compile(path)
    child = exe.waiting_child
    assert child is not None
    child.process.kill()
    child.process.wait()
    check(exe, 100)
    assert exe.wait(120)
    check(exe, 100)
    assert exe.size_classes.admits({"n": 100})


def test_a_compilation_that_fails_leaves_calls_right(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exe = superopt.compile(path)
    with path.open("r+b") as file:
        file.truncate(100)
    for n in (100, 100, 7):
        check(exe, n)
        assert exe.wait(120)
    assert not exe.variants
    assert "was written again" in " ".join(exe.shape_policy.fallback_reasons.values())


def test_an_invalid_model_has_its_own_error(tmp_path: Path) -> None:
    broken = net()
    broken.graph.node[1].input[0] = "nowhere"
    onnx.save(broken, tmp_path / "broken.onnx")
    with pytest.raises(ModelError) as here:
        superopt.compile(tmp_path / "broken.onnx", specialize="never")
    with pytest.raises(ModelError) as found:
        superopt.compile(tmp_path / "broken.onnx")
    assert str(found.value) == str(here.value)


def test_what_onnxruntime_does_not_run_is_compiled_in_the_call(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: object) -> None:
        raise ModelError("onnxruntime does not load the model", "it is odd", "compile it")

    monkeypatch.setattr(FallbackCache, "find_session", lambda self: None)
    monkeypatch.setattr(Compiler, "fallback_variant", refuses)
    exe = superopt.compile(path)
    assert exe.waiting_child is None
    for n in (100, 3):
        check(exe, n)
        assert (("n", n),) in exe.variants


@pytest.mark.parametrize("how", ["close", "delete"])
def test_the_child_ends_with_the_model(how: str, path: Path) -> None:
    exe = superopt.compile(path)
    child = exe.waiting_child
    assert child is not None
    assert child.is_running
    if how == "close":
        exe.close()
    else:
        del exe
        gc.collect()
    assert not child.is_running


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_process_leaves_the_child_to_its_parent(path: Path) -> None:
    exe = superopt.compile(path)
    child = exe.waiting_child
    assert child is not None
    forked = os.fork()
    if forked == 0:
        code = 1
        try:
            assert exe.waiting_child is None
            check(exe, 5)
            exe.close()
            child.close()
            code = 0
        finally:
            sys.stdout.flush()
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]) == 0
    assert child.is_running


@pytest.mark.ci
@pytest.mark.usefixtures("faster")
def test_threads_while_classes_are_swapped_in(path: Path) -> None:
    exe = superopt.compile(path)
    failed: list[BaseException] = []
    stop = threading.Event()

    def calls(seed: int) -> None:
        try:
            rng = np.random.default_rng(seed)
            while not stop.is_set():
                check(exe, int(rng.integers(1, 200)))
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=calls, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    while not exe.size_classes.classes and not failed and exe.shape_policy.first_in_background:
        exe.wait(1)
    stop.set()
    for t in threads:
        t.join(60)
    assert not failed
    assert exe.size_classes.classes
    assert exe.wait(120)
    for n in (0, 1, 5, 64, 200):
        check(exe, n)


@pytest.mark.parametrize("how", ["bind", "calls"])
def test_who_waits_for_a_program_has_it_from_the_child(
    how: str, path: Path, compiled_here: list[dict[str, int]]
) -> None:
    exe = superopt.compile(path)
    if how == "bind":
        x = rows(100)
        out = exe.bind(inputs={"x": x})()["y"].copy()
        near(exe(x=x), {"y": out})
    else:
        exe.compile_in_calls()
        assert exe.shape_policy.fallback is None
        check(exe, 100)
    assert exe.variants[(("n", 100),)].is_of_class
    assert not compiled_here
    assert exe.waiting_child is None


def counter_model() -> onnx.ModelProto:
    """A cache that grows, and the sum of it."""
    nodes = [
        helper.make_node("Concat", ["past", "x"], ["present"], axis=0),
        helper.make_node("MatMul", ["present", "w"], ["a"]),
        helper.make_node("ReduceSum", ["a"], ["y"], keepdims=0),
    ]
    inputs = {"x": (F, ["n", 64]), "past": (F, ["past", 64])}
    return model(nodes, inputs, ["y", "present"], {"w": W})


def test_states_are_compiled_by_the_child_in_the_first_call(
    tmp_path: Path, compiled_here: list[dict[str, int]]
) -> None:
    onnx.save(counter_model(), tmp_path / "m.onnx")
    exe = superopt.compile(tmp_path / "m.onnx")
    call = exe.bind_state({"present": "past"})
    total = np.zeros((0, 64), np.float32)
    assert exe.shape_policy.fallback is None
    for n in (9, 1, 1, 1):
        total = np.concatenate([total, rows(n)])
        near(call.run({"x": rows(n)}), {"y": (total @ W).sum()})
        assert exe.waiting_child is None
    assert not compiled_here


@pytest.mark.ci
@pytest.mark.usefixtures("faster")
def test_few_children_wait(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_worker, "MAX_WAITING_CHILDREN", 1)
    first, second = superopt.compile(path), superopt.compile(path)
    assert first.waiting_child is not None
    assert second.waiting_child is not None
    assert not first.waiting_child.is_running
    assert second.waiting_child.is_running
    for exe in (second, first):
        check(exe, 100)
        assert exe.wait(120)
        check(exe, 100)
        assert exe.size_classes.admits({"n": 100})
