"""Programs for classes of sizes: which calls compile, the disk cache, calls of several threads."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import superopt
from superopt.compilation.cpu import class_call
from superopt.compilation.model import frequent_sizes, specialize
from superopt.compilation.model.compiler import Compiler
from superopt.errors import ModelError
from tests.support.compilation.cache import record_compilations
from tests.support.compilation.models import F, model, near, reference

pytest.importorskip("onnxruntime")
W = np.random.default_rng(0).standard_normal((64, 96)).astype(np.float32)


def net() -> onnx.ModelProto:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Softmax", ["a"], ["y"], axis=-1),
    ]
    return model(nodes, {"x": (F, ["n", 64])}, ["y"], {"w": W})


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPEROPT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, int]]:
    """The sizes for which a class or a program was compiled."""
    return record_compilations(monkeypatch)


def rows(n: int) -> np.ndarray:
    return np.random.default_rng(n).standard_normal((n, 64)).astype(np.float32)


def check(exe: superopt.Executable, n: int) -> None:
    a = rows(n).astype(np.float64) @ W
    e = np.exp(a - a.max(1, keepdims=True))
    near(exe(x=rows(n)), {"y": (e / e.sum(1, keepdims=True)).astype(np.float32)})


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("mode", ["background", "never"])
def test_one_compilation_serves_many_sizes(
    mode: Any, threads: int, compilations: list[dict[str, int]]
) -> None:
    exe = superopt.compile(net(), specialize=mode, threads=threads)
    for n in (100, 300, 64, 99, 1000, 65, 100):
        check(exe, n)
    assert compilations == [{"n": 100}]
    assert all(v.is_of_class for v in exe.variants.values())


def test_each_size_is_compiled_if_asked(compilations: list[dict[str, int]]) -> None:
    exe = superopt.compile(net(), specialize="eager")
    for n in (100, 101):
        check(exe, n)
    assert compilations == [{"n": 100}, {"n": 101}]


def test_sizes_out_of_the_class_are_right() -> None:
    exe = superopt.compile(net())
    for n in (100, 1, 2, 0, 3, 17, 100):
        check(exe, n) if n else exe(x=rows(0))
    (first,) = exe.size_classes.classes
    assert not first.formulas.admits({"n": 0})


def test_another_class_is_compiled_beside_the_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    exe = superopt.compile(net())
    check(exe, 100)
    exe.shape_policy.compile_seconds = [1e-9]
    assert not exe.size_classes.classes[0].formulas.admits({"n": 2})
    check(exe, 2)
    assert exe.wait(120)
    assert exe.size_classes.classes[1].formulas.admits({"n": 2})
    check(exe, 2)


def test_classes_of_all_levels_are_compiled_beside_the_calls(tmp_path: Path) -> None:
    """Whichever size shows that sizes vary: another process has classes for all."""
    path = tmp_path / "m.onnx"
    onnx.save(net(), path)
    exe = superopt.compile(path, shapes=())
    check(exe, 100)
    exe.shape_policy.compile_seconds = [1e-9]
    check(exe, 2)
    assert exe.wait(300)
    assert all(exe.size_classes.admits({"n": n}) for n in range(1, 200))
    again = superopt.compile(path, specialize="never")
    for n in (1, 5, 30, 100):
        check(again, n)
    assert all(v.is_of_class for v in again.variants.values())


def test_another_process_has_the_classes(
    tmp_path: Path, compilations: list[dict[str, int]]
) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(net(), path)
    check(superopt.compile(path, shapes=()), 100)
    again = superopt.compile(path, shapes=())
    for n in (200, 77):
        check(again, n)
    assert compilations == [{"n": 100}]
    again.accuracy({"n": 80})
    assert again.variant({"n": 200}).program.symbolic is None  # tools have a plan for these sizes


@pytest.mark.parametrize("kind", ["classes", "program"])
def test_a_damaged_class_is_compiled_again(
    kind: str, tmp_path: Path, compilations: list[dict[str, int]]
) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(net(), path)
    check(superopt.compile(path, shapes=()), 100)
    for file in (tmp_path / "cache").rglob(f"*.{kind}"):
        held = bytearray(file.read_bytes())
        held[len(held) // 2] ^= 8
        file.write_bytes(held)
    check(superopt.compile(path, shapes=()), 120)
    assert compilations == [{"n": 100}, {"n": 120}]


def test_what_has_no_classes_is_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compilations: list[dict[str, int]]
) -> None:
    monkeypatch.setattr(Compiler, "compile_class", lambda self, sizes: None)
    path = tmp_path / "m.onnx"
    onnx.save(net(), path)
    check(superopt.compile(path, shapes=()), 100)
    again = superopt.compile(path, shapes=())
    monkeypatch.setattr(Compiler, "compile_class", None)  # is not called
    check(again, 90)
    assert not again.size_classes.is_supported
    assert compilations == [{"n": 100}, {"n": 90}]


def test_planning_that_fails_leaves_sizes_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise KeyError("a case that nobody thought of")

    exe = superopt.compile(net())
    monkeypatch.setattr(type(exe.compiler.generator), "compile_for_classes", fails)
    check(exe, 100)
    assert not exe.size_classes.is_supported


def test_a_file_that_was_written_again_is_not_compiled(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(net(), path)
    exe = superopt.compile(path, shapes=())
    with path.open("r+b") as file:
        file.truncate(100)
    with pytest.raises(ModelError, match="was written again"):
        exe(x=rows(100))


def test_few_sizes_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_call, "MAX_KEPT_CALLS", 3)
    monkeypatch.setattr(class_call, "MAX_SEEN_SHAPES", 12)
    exe = superopt.compile(net())
    for n in (*range(100, 110), *range(100, 110), *range(110, 120)):
        check(exe, n)
    kept = exe.last_call.__self__  # type: ignore[union-attr]
    assert {*kept.calls} == {((n, 64),) for n in (107, 108, 109)}
    assert {*kept.seen} == {((n, 64),) for n in range(108, 120)}
    assert len(exe.variants) == 1


@pytest.mark.parametrize("threads", [1, 2])
def test_calls_of_many_threads(threads: int) -> None:
    """Each gets its own results, equal to the bit to those of one thread, and keeps them."""
    exe = superopt.compile(net(), threads=threads)
    some = [int(n) for n in np.random.default_rng(0).integers(64, 400, 20)]
    inputs = {n: rows(n) for n in some}
    wanted = {n: exe(x=inputs[n])["y"].copy() for n in some}
    failed: list[int] = []

    def work(seed: int) -> None:
        kept = []
        for n in np.random.default_rng(seed).choice(some, 100):
            kept.append((n, exe(x=inputs[n])["y"]))
        failed.extend(n for n, y in kept if not np.array_equal(y, wanted[n]))

    workers = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for each in workers:
        each.start()
    for each in workers:
        each.join(240)
    assert not failed


def test_another_target_compiles_each_size() -> None:
    exe = superopt.compile(net(), target="reference")
    for n in (3, 5):
        check(exe, n)
    assert not exe.size_classes.is_supported
    assert not exe.size_classes.classes


@pytest.mark.parametrize("is_faster", [True, False])
def test_frequent_sizes_have_a_program_of_their_own(
    is_faster: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = (1.0, 2.0) if is_faster else (2.0, 1.0)
    monkeypatch.setattr(frequent_sizes, "fastest_times", lambda *_: times)
    exe = superopt.compile(net())
    check(exe, 100)
    exe.shape_policy.compile_seconds = [1e-9]  # any call has taken long enough
    for n in (200, 100, 200):
        check(exe, n)
    assert exe.wait(120)
    own = {n for ((_, n),), v in exe.variants.items() if not v.is_of_class}
    assert own == ({100, 200} if is_faster else set())
    for n in (200, 100, 300):
        check(exe, n)


def test_with_never_frequent_sizes_stay_in_the_class(compilations: list[dict[str, int]]) -> None:
    exe = superopt.compile(net(), specialize="never")
    check(exe, 100)
    exe.shape_policy.compile_seconds = [1e-9]
    for _ in range(3):
        check(exe, 100)
    assert exe.wait(60)
    assert compilations == [{"n": 100}]


def test_convolutions_by_winograd_are_compiled_for_a_class_at_the_first_call() -> None:
    w = np.random.default_rng(0).standard_normal((32, 32, 3, 3)).astype(np.float32) / 16
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], pads=[1] * 4)]
    m = model(nodes, {"x": (F, ["n", 32, 12, 12])}, ["y"], {"w": w})
    x = np.random.default_rng(1).standard_normal((5, 32, 12, 12)).astype(np.float32)
    exe = superopt.compile(m)
    few = exe(x=x[:3])["y"]
    assert exe.variants[(("n", 3),)].is_of_class
    program = exe.variants[(("n", 3),)].steps[0].program
    assert "winograd" in {option.algorithm for option in program.options.values()}
    for n in range(1, 6):
        near(exe(x=x[:n]), reference(m, {"x": x[:n]}))
    near({"y": exe(x=x)["y"][:3]}, {"y": few})
    assert len(exe.size_classes.classes) == 1


@pytest.mark.ci
@pytest.mark.parametrize("is_cached", [False, True])
def test_a_model_of_a_class_is_saved_and_exported(is_cached: bool, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(net(), path)
    exe = superopt.compile(path, shapes=())
    check(exe, 100)
    if is_cached:
        exe = superopt.compile(path, shapes=())
        check(exe, 100)
    assert exe.variants[(("n", 100),)].is_of_class
    exe.export(tmp_path / "library")
    for n in range(101, 107):
        check(exe, n)
    exe.save(tmp_path / "m.superopt")
    loaded = superopt.load(tmp_path / "m.superopt")
    assert len(loaded.variants) <= 4
    for n in (100, 106, 300):
        check(loaded, n)


def test_sizes_of_a_class_wait_for_one_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(specialize, "fastest_times", lambda *_: (1.0, 2.0))
    exe = superopt.compile(net())
    check(exe, 1)
    exe.shape_policy.compile_seconds = [1e-9]
    for n in range(100, 110):
        check(exe, n)
        assert len(exe.shape_policy.pending) <= 1
    assert exe.wait(120)
    for n in range(110, 120):
        check(exe, n)
    guards = [c.formulas.guards for c in exe.size_classes.classes]
    assert len(guards) == len(set(guards)) >= 2
