"""What there is around models on a GPU: parts in onnxruntime, files, profiles, accuracy, the
commands."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import superopt
from superopt.baselines import torch_compile as peer
from superopt.cli import main
from superopt.compilation.cuda import gpu_inputs
from superopt.compilation.cuda.device import DOT_PRECISIONS
from superopt.compilation.model.executable import Executable
from superopt.errors import UsageError
from superopt.kernels.runtime.gpu_device import GpuPeak
from tests.support.compilation.models import F, model, reference
from tests.support.gpu.compilation import feeds, near
from tests.support.gpu.device import REAL
from tests.support.gpu.models import MODELS, drawn, node
from tests.support.paths import SCRIPTS

sys.path.insert(0, str(SCRIPTS))

import bench_gpu

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("interpreted")]


def between() -> onnx.ModelProto:
    """Kernels before and behind a node that has none; and outputs that are inputs."""
    nodes = [
        node("MatMul", "x", "w", "a"), node("Softmax", "a", "b", axis=-1),
        node("LpNormalization", "b", "c0", axis=-1), node("Unique", "c0", "c", sorted=0),
        node("MatMul", "b", "v", "d"), node("Relu", "d", "y"), node("Size", "c", "n"),
    ]  # fmt: skip
    known = {"w": drawn(96, 72, scale=0.1), "v": drawn(72, 40)}
    return model(nodes, {"x": (F, [37, 96])}, ["y", "n", "x"], known)


def test_what_has_no_kernel_runs_in_onnxruntime() -> None:
    m = between()
    exe = superopt.compile(m, target="cuda", precision="fp16")
    got, wanted = exe.run(feeds(m)), reference(m, feeds(m))
    near({"y": got["y"]}, {"y": wanted["y"]}, "fp16")
    assert np.array_equal(got["x"], wanted["x"])
    assert got["n"].dtype == wanted["n"].dtype
    fallen = {n.op.name: why for n, why in exe.fallback_nodes({})}
    assert "Unique" in fallen
    assert "MatMul" not in fallen


def test_a_model_of_no_kernels(tmp_path: Path) -> None:
    """Its profile is that of onnxruntime; its outputs are numpy's; and it is not exported."""
    m = model([node("NonZero", "x", "y")], {"x": (F, [3, 4])}, ["y"], {})
    exe = superopt.compile(m, target="cuda")
    assert [p.how for p in exe.profile(seconds=0.01).parts] == ["onnxruntime, on the CPU"]
    assert "NonZero" in str(exe.profile(seconds=0.01))
    assert np.array_equal(exe.run(feeds(m))["y"], reference(m, feeds(m))["y"])
    with pytest.raises(UsageError, match="target cuda cannot be exported"):
        exe.export(tmp_path)


def test_outputs_are_the_callers() -> None:
    m = MODELS["pointwise"]()
    exe = superopt.compile(m, target="cuda")
    first = exe.run(feeds(m))["y"]
    held = first.copy()
    exe.run({k: 2 * x for k, x in feeds(m).items()})
    assert np.array_equal(first, held)


def test_outputs_are_where_the_inputs_are(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    m = between()
    exe = superopt.compile(m, target="cuda")
    if not REAL:  # tensors of the processor stand for some of the GPU
        monkeypatch.setattr(gpu_inputs, "is_gpu_tensor", lambda x: isinstance(x, torch.Tensor))
    where = "cuda" if REAL else "cpu"
    got = exe.run({k: torch.from_numpy(x).to(where) for k, x in feeds(m).items()})
    assert all(isinstance(x, torch.Tensor) for x in got.values())
    wanted = reference(m, feeds(m))
    near({"y": got["y"].cpu().numpy()}, {"y": wanted["y"]}, "fp32")


def test_it_is_saved(tmp_path: Path) -> None:
    m = MODELS["a block"]()
    exe = superopt.compile(m, target="cuda", precision="fp16", streams=2, vendor=False)
    exe.save(tmp_path / "m.superopt")
    again = superopt.load(tmp_path / "m.superopt")
    assert isinstance(again, Executable)
    made = again.compiler
    generator = made.generator
    assert (made.device.precision, generator.streams, generator.vendor) == ("fp16", 2, False)
    assert again.variant({}).program.options == exe.variant({}).program.options
    a, b = exe.run(feeds(m)), again.run(feeds(m))
    assert all(np.array_equal(a[k], b[k]) for k in a)
    text = (tmp_path / "m.superopt").read_bytes()
    (tmp_path / "bad").write_bytes(text[: len(text) // 2])
    with pytest.raises(UsageError):
        superopt.load(tmp_path / "bad")


def test_its_profile() -> None:
    exe = superopt.compile(MODELS["a block"](), target="cuda", precision="fp16")
    found = exe.profile(seconds=0.01)
    program = exe.variant({}).program
    assert len(found.parts) == len(program.calls)
    assert {p.how.split(":")[0] for p in found.parts} == set(map(str, program.options.values()))
    assert sum(p.operations for p in found.parts) > 2 * 2 * 63 * (16 * 9 * 32 + 32 * 9 * 32)
    assert "in fp16" in str(found)
    assert "<svg" in found.svg()


@pytest.mark.one_in(2)
@pytest.mark.parametrize("precision", DOT_PRECISIONS)
def test_its_accuracy(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    exe = superopt.compile(MODELS["a block"](), target="cuda", precision=precision)
    found = exe.accuracy()
    assert found.passed, str(found)
    assert [x.name for x in found.outputs] == ["y"]
    assert f"in {precision}: within the tolerance" in str(found)
    run = Executable.run

    def wrong(self: Executable, given: Mapping[str, Any]) -> dict[str, Any]:
        return {k: x * np.float32(1.1) for k, x in run(self, given).items()}

    monkeypatch.setattr(Executable, "run", wrong)
    assert not exe.accuracy().passed
    assert "NOT within" in str(exe.accuracy())


@pytest.mark.parametrize("command", ["bench", "compile", "profile", "run", "tune"])
def test_the_commands(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    m = MODELS["joined" if command == "bench" else "a convolution"]()
    path, x, y = tmp_path / "m.onnx", tmp_path / "x.npz", tmp_path / "y.npz"
    onnx.save(m, path)
    np.savez(x, **feeds(m))
    more = {
        "bench": ["--vs", "superopt,ort", "--seconds", "0.1s"],
        "compile": ["--dump", str(tmp_path / "dump")],
        "profile": ["--seconds", "0.01"],
        "run": ["--inputs", str(x), "-o", str(y)],
        "tune": ["--budget", "20s" if REAL else "1s", "--store", str(tmp_path / "store")],
    }[command]
    given = [command, str(path), "--target", "cuda", "--precision", "fp16", *more]
    assert main.run(given) == 0
    output = capsys.readouterr().out
    if command == "compile":
        assert "a GPU, in fp16" in output
        (text,) = [p for p in (tmp_path / "dump").glob("*.triton.py") if "tl.dot" in p.read_text()]
        assert "@triton.jit" in text.read_text()
    if command == "bench":
        where = "on the GPU" if REAL else "in Triton's interpreter"
        assert f"superopt (compiled) {where}, in fp16" in output
        assert "onnxruntime" in output
    if command == "run":
        near(np.load(y), reference(m, feeds(m)), "fp16")
    if command == "profile":
        assert "gemm rows=" in output


def test_torch_on_a_device(tmp_path: Path) -> None:
    """What is compared with: the model by torch.compile where it is asked for, in the precision."""
    import torch

    made = pytest.importorskip("onnx2torch").convert(m := MODELS["a convolution"]()).eval()
    (x,) = feeds(m).values()
    module, (given,) = peer.move_to_device(made, [torch.from_numpy(x)], "cpu", torch.float16)
    assert given.is_contiguous(memory_format=torch.channels_last)
    assert {p.dtype for p in module.parameters()} == {torch.float16}
    with torch.no_grad():
        got = module(given).float().numpy()
    near({"y": got}, reference(m, feeds(m)), "fp16")
    if REAL:
        onnx.save(m, tmp_path / "m.onnx")
        run: Any = peer.prepare(tmp_path / "m.onnx", {"x": x}, 1, "cuda", "fp16")
        near({"y": run().float().cpu().numpy()}, reference(m, feeds(m)), "fp16")


def test_a_step_of_the_benchmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What scripts/bench_gpu.py does of a model by itself, with inputs that are there whenever it
    is timed; in the interpreter times say nothing."""

    def event_ms(run: Any, runs: int = 0) -> float:
        run()
        for x in getattr(run, "inputs", ()):
            assert bool((x != 0).any())
        timed.append(run)
        return 1.0 if not REAL else real(run)

    real, timed = bench_gpu.event_ms, []
    case = bench_gpu.Case("a model", "fp16", 1)
    onnx.save(MODELS["products"](), tmp_path / "m.onnx")  # of three outputs
    monkeypatch.setattr(bench_gpu.Bench, "path", lambda self, case: tmp_path / "m.onnx")
    monkeypatch.setattr(bench_gpu, "event_ms", event_ms)
    monkeypatch.setattr(bench_gpu, "most", lambda precision: GpuPeak(800e12, 3e12))
    bench = bench_gpu.Bench(tmp_path, tmp_path, tune=3)
    found = bench.do(case, bench_gpu.OWN, bench.ready(case))
    assert len(timed) >= 3
    assert found["error"] < 1e-2
    assert 0 < found["limit"] < 1e-2
    assert {"ms", "kernels", "compile s", "seconds", "untuned"} <= set(found)
    assert (found["accuracy"]["ok"], found["accuracy"]["errors"][0] < 1e-2) == (True, True)
    assert "limit" in json.loads(json.dumps(found))["why"]
    exact = bench.exact[case.name, case.batch]
    exact[-1] = exact[-1] * np.nan  # the last one alone
    with pytest.raises(ArithmeticError, match="of their rms"):
        bench.do(case, bench_gpu.OWN, bench.ready(case))
