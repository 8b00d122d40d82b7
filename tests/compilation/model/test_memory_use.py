"""`Executable.memory`: its bytes are those of the arrays and files that the model holds."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import superopt
from superopt.plan.program.call_context import CallContext
from superopt.plan.program.image import LoadedProgram, ProgramImage
from tests.support.compilation.concurrent_calls import in_threads, mlp, programs, rows
from tests.support.compilation.models import F, model


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPEROPT_CACHE", str(tmp_path / "cache"))


def live(kind: type) -> list:
    """Return all objects of a class in this process, whoever holds them."""
    gc.collect()
    return [x for x in gc.get_objects() if type(x) is kind]


def array_bytes(contexts: list[CallContext]) -> tuple[int, int]:
    """Return the bytes of memory and of workspaces."""
    return (
        sum(c.memory.nbytes for c in contexts),
        sum(w.nbytes for c in contexts for w in c.workspaces),
    )


@pytest.mark.ci
@pytest.mark.one_in(2)
@pytest.mark.parametrize("threads", [1, 2])
def test_the_sum_is_that_of_what_is_held(threads: int) -> None:
    before = live(LoadedProgram)
    exe = superopt.compile(mlp(), specialize="never", threads=threads)
    for n in (64, 70, 300):
        exe.run({"x": rows(n)})
    exe.runnable({"n": 48})  # a program for this size alone
    in_threads(lambda n: [exe.run({"x": rows(70 + n)}) for _ in range(30)], 4)
    found = exe.memory()
    mine = [p for p in live(LoadedProgram) if not any(p is b for b in before)]
    assert len(found.programs) == len(mine) > 1
    contexts = [c for p in mine for c in p.live_contexts()]
    memory, workspaces = array_bytes(contexts)
    assert sum(p.contexts for p in found.programs) == len(contexts)
    assert sum(p.memory_bytes for p in found.programs) == memory > 0
    assert sum(p.workspace_bytes for p in found.programs) == workspaces
    weights = {a.ctypes.data: a.nbytes for p in mine for a in p.constants.arrays}
    assert found.weight_bytes == sum(weights.values()) > 0
    assert max(p.weight_bytes for p in found.programs) <= found.weight_bytes
    kept = {
        id(a): a.nbytes
        for v in exe.variants.values() for s in v for some in s.kept_outputs for a in some
    }  # fmt: skip
    code = sum(p.code_bytes for p in mine)
    model_bytes = sum(map(len, [exe.model.source.skeleton.data]))
    model_bytes += sum(memoryview(b).nbytes if isinstance(b, np.ndarray) else b.size
                       for b in exe.model.source.skeleton.blobs)  # fmt: skip
    assert found.total_bytes == (
        found.weight_bytes + memory + workspaces + sum(kept.values()) + code + model_bytes
    )


def test_code_bytes_are_those_of_the_object_files(monkeypatch: pytest.MonkeyPatch) -> None:
    images = []
    post_init = ProgramImage.__init__

    def record_image(self: ProgramImage, *args: object, **named: object) -> None:
        post_init(self, *args, **named)  # type: ignore[arg-type]
        images.append(self)

    monkeypatch.setattr(ProgramImage, "__init__", record_image)
    exe = superopt.compile(mlp(64))
    (p,) = exe.memory().programs
    assert p.name == "all inputs"
    assert p.code_bytes in {sum(map(len, i.objects)) for i in images}


def test_large_outputs_that_are_kept_are_counted() -> None:
    nodes = [helper.make_node("Mul", ["x", "x"], ["y"])]
    exe = superopt.compile(model(nodes, {"x": (F, [1 << 19])}, ["y"]))
    x = np.ones(1 << 19, np.float32)
    held = [exe.run({"x": x}) for _ in range(2)]
    assert exe.memory().programs[0].output_bytes == 2 * x.nbytes
    del held


def test_weights_from_the_cache_are_mapped(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    w = rng.standard_normal((256, 256)).astype(np.float32)
    m = model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": (F, [4, 256])}, ["y"], {"w": w}
    )
    onnx.save(m, str(tmp_path / "m.onnx"))
    first = superopt.compile(tmp_path / "m.onnx")
    own = first.memory()
    assert own.mapped_bytes == 0
    assert own.weight_bytes >= w.nbytes
    assert own.model_file_bytes == (tmp_path / "m.onnx").stat().st_size
    first.close()
    gc.collect()
    again = superopt.compile(tmp_path / "m.onnx")
    found = again.memory()
    assert found.mapped_bytes >= w.nbytes
    assert found.weight_bytes == own.weight_bytes
    assert found.model_file_bytes == 0  # only the program was loaded


def test_the_table() -> None:
    exe = superopt.compile(mlp(), specialize="never")
    exe.run({"x": rows(64)})
    (p,) = programs(exe)
    text = str(exe.memory())
    head, row = text.splitlines()[1:3]
    assert head.split() == [
        "program", "weights", "code", "contexts", "memory", "workspaces", "outputs",
    ]  # fmt: skip
    assert "class of n=64" in row
    assert " 1 " in row
    assert f"{p.code_bytes / 1000:.3g} kB" in row
    assert "each counted once" in text


def test_parts_in_onnxruntime_are_named() -> None:
    pytest.importorskip("onnxruntime")
    nodes = [helper.make_node("Unique", ["x"], ["y"])]
    exe = superopt.compile(model(nodes, {"x": (F, [4])}, ["y"]))
    exe.run({"x": np.ones(4, np.float32)})
    assert exe.memory().sessions == 1
    assert "1 session in onnxruntime" in str(exe.memory())
