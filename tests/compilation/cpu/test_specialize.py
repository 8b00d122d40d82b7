"""Calls at sizes for which a model is not compiled, of models that are compiled size by size."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import superopt
from superopt.compilation.cpu.native_segment import NativeSegment
from superopt.compilation.model import specialize
from superopt.compilation.model.compiler import Compiler
from superopt.compilation.model.shape_policy import DEFAULT_COMPILE_SECONDS
from superopt.compilation.runtime import background_worker, child_process
from superopt.errors import ModelError, UsageError
from superopt.te.eval import blas
from tests.support.compilation.models import F, model, near

pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.usefixtures("one_by_one")
SLOW = 1e-9  # seconds that compiling took: any call is longer
W = np.random.default_rng(0).standard_normal((96, 96)).astype(np.float32)


def tanh() -> onnx.ModelProto:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Tanh", ["a"], ["y"])]
    return model(nodes, {"x": (F, ["n", 96])}, ["y"], {"w": W})


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPEROPT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled code is always measured to be twice as fast."""
    monkeypatch.setattr(specialize, "_measure_pair", lambda *_: (1.0, 2.0))


def rows(n: int) -> np.ndarray:
    return np.random.default_rng(n).standard_normal((n, 96)).astype(np.float32)


def check(exe: superopt.Executable, n: int) -> None:
    x = rows(n)
    near(exe(x=x), {"y": np.tanh(x @ W)})


def sizes(exe: superopt.Executable) -> list[int]:
    return [n for key in exe.variants for _, n in key]


@pytest.mark.parametrize(
    ("mode", "given", "compiled"),
    [
        ("eager", None, [3, 4, 5]),
        ("background", None, [3]),  # the first call compiles
        ("background", {"n": 7}, [7]),
        ("background", [{"n": 7}, {"n": 4}], [7, 4]),
        ("never", None, []),
        ("never", {"n": 4}, [4]),
    ],
)
def test_what_a_call_compiles(mode: Any, given: Any, compiled: list[int]) -> None:
    exe = superopt.compile(tanh(), specialize=mode, shapes=given)
    for n in (3, 4, 5):
        check(exe, n)
    assert sizes(exe) == compiled


def test_sizes_that_paid_are_compiled_beside_the_calls(faster: None) -> None:
    exe = superopt.compile(tanh(), shapes={"n": 3})
    exe.shape_policy.compile_seconds = [SLOW]
    check(exe, 4)
    assert exe.wait(60)
    assert sizes(exe) == [3, 4]
    assert all(isinstance(s, NativeSegment) for steps in exe.variants.values() for s in steps)
    assert exe.fallback_nodes({"n": 4}) == []
    check(exe, 4)
    check(exe, 3)


@pytest.mark.usefixtures("faster")
def test_parts_in_onnxruntime_are_compiled_in_this_process() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Det", ["s"], ["d"]),
        helper.make_node("Mul", ["a", "d"], ["y"]),
    ]
    m = model(nodes, {"x": (F, ["n", 96]), "s": (F, [2, 2])}, ["y"], {"w": W})
    exe = superopt.compile(m, shapes={"n": 3})
    assert exe.fallback_nodes({"n": 3})
    exe.shape_policy.compile_seconds = [SLOW]
    s = np.float32([[2, 0], [0, 1]])
    for _ in range(2):
        near(exe(x=rows(5), s=s), {"y": rows(5) @ W * 2})
        assert exe.wait(60)
    assert sizes(exe) == [3, 5]


def test_slower_code_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(specialize, "_measure_pair", lambda *_: (2.0, 1.0))
    exe = superopt.compile(tanh(), shapes={"n": 3})
    exe.shape_policy.compile_seconds = [SLOW]
    check(exe, 4)
    assert exe.wait(60)
    assert sizes(exe) == [3]
    assert "onnxruntime is faster" in exe.fallback_nodes({"n": 4})[0][1]
    check(exe, 4)
    assert exe.wait(60)
    assert sizes(exe) == [3]
    exe.variant({"n": 4})  # who asks for it has it
    assert exe.fallback_nodes({"n": 4}) == []


@pytest.mark.usefixtures("faster")
def test_what_fails_in_the_background_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    exe = superopt.compile(tanh(), shapes={"n": 3})
    exe.shape_policy.compile_seconds = [1e9]
    check(exe, 5)  # onnxruntime has the model
    exe.shape_policy.compile_seconds = [SLOW]

    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("no such luck")

    monkeypatch.setattr(Compiler, "compile_variant", fails)
    check(exe, 4)
    assert exe.wait(60)
    ((_, why), *_) = exe.fallback_nodes({"n": 4})
    assert "no such luck" in why
    check(exe, 4)
    assert exe.wait(60)
    assert exe.shape_policy.pending == set()


@pytest.mark.parametrize("in_child", [True, False])
@pytest.mark.usefixtures("faster")
def test_a_child_compiles_a_model_in_a_file(
    in_child: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(tanh(), path)
    monkeypatch.setattr(child_process, "CAN_RUN_CHILDREN", in_child)
    exe = superopt.compile(path, shapes={"n": 3})
    exe.shape_policy.compile_seconds = [SLOW]
    here: list[object] = []
    compile_variant: Any = Compiler.compile_variant

    def record(self: Any, at: Any, *args: Any, **more: Any) -> Any:
        here.append(at)
        return compile_variant(self, at, *args, **more)

    monkeypatch.setattr(Compiler, "compile_variant", record)
    check(exe, 4)
    assert exe.wait(120)
    assert (sizes(exe), bool(here)) == ([3, 4], not in_child)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_call_of_numpy_beside_a_compilation_ends(tmp_path: Path) -> None:
    """A fork would end the threads that OpenBLAS waits for."""
    if (found := blas.openblas()) is None:
        pytest.skip("numpy has another BLAS")
    path = tmp_path / "m.onnx"
    onnx.save(tanh(), path)
    exe = superopt.compile(path, shapes={"n": 3})
    exe.shape_policy.compile_seconds = [SLOW]
    forks: list[None] = []
    os.register_at_fork(before=lambda: forks.append(None))
    a = np.ones((300, 300))
    threads, set_threads = found
    before = threads()
    set_threads(2)
    try:
        check(exe, 4)
        while not background_worker.background_worker().children and not exe.wait(0):
            a @ a
        for _ in range(20):
            a @ a
    finally:
        set_threads(before)
    assert exe.wait(120)
    assert not forks


@pytest.mark.usefixtures("faster")
def test_calls_from_several_threads() -> None:
    exe = superopt.compile(tanh(), shapes={"n": 3})
    exe.shape_policy.compile_seconds = [SLOW]
    failed: list[BaseException] = []

    def calls(seed: int) -> None:
        try:
            for n in np.random.default_rng(seed).integers(3, 9, 40):
                check(exe, int(n))
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=calls, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert exe.wait(120)
    assert not failed
    for n in range(3, 9):
        check(exe, n)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.usefixtures("faster")
def test_a_forked_process_has_a_job_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The size that the parent compiles is not pending in the child, which compiles it as well."""
    exe = superopt.compile(tanh(), shapes={"n": 3})
    exe.shape_policy.compile_seconds = [SLOW]
    started, go = threading.Event(), threading.Event()

    def waits(*_: object) -> Any:
        started.set()
        go.wait(60)
        raise RuntimeError("given up")

    monkeypatch.setattr(specialize, "compile_in_background", waits)
    check(exe, 4)
    assert started.wait(60)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            check(exe, 4)
            code = 2 if exe.wait(0) else 0
        finally:
            os._exit(code)
    go.set()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert exe.wait(60)


EXITS = """
import sys, numpy, superopt
from superopt.compilation.runtime import child_process
child_process.CAN_RUN_CHILDREN = sys.argv[2] == "child"
exe = superopt.compile(sys.argv[1], shapes={"n": 3})
exe.shape_policy.compile_seconds = [1e-9]
for n in range(4, 9):
    exe(x=numpy.ones((n, 96), numpy.float32))
print(len(exe.shape_policy.pending) > 0)
"""


@pytest.mark.ci
@pytest.mark.parametrize("how", ["child", "thread"])
def test_a_process_ends_while_a_model_is_compiled(how: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(tanh(), path)
    done = subprocess.run(
        [sys.executable, "-c", EXITS, str(path), how], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


def test_without_onnxruntime_each_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(superopt.ort, "installed_version", lambda: None)
    exe = superopt.compile(tanh())
    for n in (3, 4, 5):
        check(exe, n)
    assert sizes(exe) == [3, 4, 5]


def test_what_onnxruntime_does_not_run_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object) -> None:
        raise ModelError("onnxruntime does not load the model", "it is odd", "compile it")

    exe = superopt.compile(tanh())
    monkeypatch.setattr(Compiler, "fallback_variant", refuses)
    for n in (3, 4, 5):
        check(exe, n)
    assert sizes(exe) == [3, 4, 5]


@pytest.mark.parametrize(("mode", "compiled"), [("background", [3]), ("eager", [3, 4])])
def test_a_loaded_model(mode: Any, compiled: list[int], tmp_path: Path) -> None:
    superopt.compile(tanh(), shapes={"n": 3}).save(tmp_path / "m")
    exe = superopt.load(tmp_path / "m", specialize=mode)
    for n in (3, 4):
        check(exe, n)
    assert sizes(exe) == compiled
    with pytest.raises(UsageError, match="sometimes"):
        superopt.load(tmp_path / "m", specialize="sometimes")  # type: ignore[arg-type]


def test_a_file_that_is_gone_or_another(tmp_path: Path) -> None:
    """onnxruntime is not given another model than the one that was read."""
    path = tmp_path / "m.onnx"
    onnx.save(tanh(), path)
    exe = superopt.compile(path, shapes={"n": 3})
    assert exe.model.source.current_path() == path
    other = tmp_path / "other.onnx"
    onnx.save(model([helper.make_node("Neg", ["x"], ["y"])], {"x": (F, ["n", 96])}, ["y"]), other)
    other.replace(path)
    assert exe.model.source.current_path() is None
    check(exe, 4)
    assert sizes(exe) == [3]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"specialize": "sometimes"}, "'background', 'eager', 'never'"),
        ({"shapes": {"m": 3}}, "symbolic sizes are n"),
        ({"shapes": {"n": -3}}, "must be an integer"),
        ({"shapes": {"n": "3"}}, "must be an integer"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        superopt.compile(tanh(), **options)


def test_shapes_of_a_model_without_symbolic_sizes() -> None:
    m = model([helper.make_node("Neg", ["x"], ["y"])], {"x": (F, [2])}, ["y"])
    with pytest.raises(UsageError, match="all its sizes are fixed"):
        superopt.compile(m, shapes={"n": 3})


def test_what_compiling_took_is_kept(tmp_path: Path) -> None:
    """A process whose programs all come from the cache rents as long as the one that made them."""
    path = tmp_path / "m.onnx"
    path.write_bytes(tanh().SerializeToString())
    exe = superopt.compile(path)
    assert exe.shape_policy.expected_compile_seconds == DEFAULT_COMPILE_SECONDS
    check(exe, 3)
    taken = exe.shape_policy.first_compile_seconds
    assert taken is not None
    again = superopt.compile(path)
    check(again, 3)
    assert again.shape_policy.first_compile_seconds is None
    assert again.shape_policy.expected_compile_seconds == taken


@pytest.mark.slow
def test_threads_at_new_sizes_at_once(tmp_path: Path) -> None:
    """Each gets the results of its own inputs, while sizes are compiled beside the calls."""
    path = tmp_path / "m.onnx"
    path.write_bytes(tanh().SerializeToString())
    exe = superopt.compile(path)
    exe.shape_policy.add_compile_time(SLOW)
    exe.shape_policy.add_compile_time(SLOW)
    failed: list[BaseException] = []
    begin = threading.Barrier(4)

    def work(number: int) -> None:
        try:
            begin.wait(60)
            for n in [*range(3, 9), *range(8, 2, -1)]:
                check(exe, n + 10 * (number % 2))
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(240)
    assert not any(t.is_alive() for t in threads)
    assert exe.wait(240)
    assert not failed
    for n in (*range(3, 9), *range(13, 19)):
        check(exe, n)


def test_repeated_calls_in_onnxruntime_are_counted() -> None:
    """Also those that take the short way, which is left once a program is there."""
    exe = superopt.compile(tanh(), shapes={"n": 3})
    for _ in range(3):
        check(exe, 5)
    key = (("n", 5),)
    before = exe.shape_policy.fallback_times[key]
    assert exe.last_call is not None
    assert exe.last_call({"x": np.zeros((5, 96), np.float32)}) is not None
    check(exe, 5)
    assert exe.shape_policy.fallback_times[key] > before
    exe.shape_policy.fallback_times[key] = 1e6
    check(exe, 5)
    assert exe.wait(120)
    check(exe, 5)
    assert key in exe.variants or key in exe.shape_policy.fallback_reasons
