"""What there is around models on a GPU: parts in onnxruntime, files, profiles, accuracy, the store,
the commands."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import superopt
from superopt.baselines import torch_compile as peer
from superopt.cli import main
from superopt.compilation.cuda import cuda_compiler, gpu_inputs, tune_kernels
from superopt.compilation.cuda.executable import CudaExecutable
from superopt.compilation.cuda.model_compiler import PRECISIONS
from superopt.cost import gpu_features
from superopt.cost.store import Store
from superopt.errors import UsageError
from superopt.kernels.algorithms.gpu import gpu_space
from superopt.kernels.algorithms.problem import Problem
from superopt.kernels.loops.option import Option
from superopt.kernels.runtime import gpu_timer
from superopt.kernels.runtime.gpu_device import GpuPeak
from superopt.onnx_io.read.source import read_model
from superopt.plan.timing import gpu
from tests.gpu import REAL
from tests.plan.gpu_models import drawn, node
from tests.plan.test_compile import F, model, reference
from tests.plan.test_cuda import MODELS, feeds, interpreted, near

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import bench_gpu

pytestmark = pytest.mark.gpu
__all__ = ["interpreted"]  # a fixture of this module, too


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
    with pytest.raises(UsageError, match="is compiled for a GPU"):
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


def test_what_tune_does_not_know(tmp_path: Path) -> None:
    m = MODELS["pointwise"]()
    with pytest.raises(UsageError, match="target rocm is unknown"):
        superopt.tune(m, target="rocm")
    with pytest.raises(UsageError, match="CPU kernels are fp32"):
        superopt.tune(m, precision="fp16")
    found = superopt.tune(m, target="cuda", budget=1, store=tmp_path / "store")
    assert any("interpreter" in note for note in found.notes) != REAL


def test_it_is_saved(tmp_path: Path) -> None:
    m = MODELS["a block"]()
    exe = superopt.compile(m, target="cuda", precision="fp16", streams=2, vendor=False)
    exe.save(tmp_path / "m.superopt")
    again = superopt.load(tmp_path / "m.superopt")
    assert isinstance(again, CudaExecutable)
    made = again.compiler
    assert (made.precision, made.streams, made.vendor) == ("fp16", 2, False)
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


@pytest.mark.parametrize("precision", PRECISIONS)
def test_its_accuracy(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    exe = superopt.compile(MODELS["a block"](), target="cuda", precision=precision)
    found = exe.accuracy()
    assert found.passed, str(found)
    assert [x.name for x in found.outputs] == ["y"]
    assert f"in {precision}: within the tolerance" in str(found)
    run = CudaExecutable.run

    def wrong(self: CudaExecutable, given: Mapping[str, Any]) -> dict[str, Any]:
        return {k: x * np.float32(1.1) for k, x in run(self, given).items()}

    monkeypatch.setattr(CudaExecutable, "run", wrong)
    assert not exe.accuracy().passed
    assert "NOT within" in str(exe.accuracy())


def test_how_long_tuning_takes_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU less than two minutes, with what compiling takes; or as long as is said."""
    asked = []

    def tune(self: CudaExecutable, sizes: Any, *, budget: float, **more: Any) -> Any:
        asked.append(budget)

    monkeypatch.setattr(CudaExecutable, "tune", tune)
    m = MODELS["a convolution"]()
    superopt.compile(m, target="cuda", tune=True)
    superopt.compile(m, target="cuda", tune=True, budget=7)
    superopt.compile(m, target="cuda")
    assert asked == [90.0, 7.0]


def test_what_was_measured_another_day_is_timed_beside_what_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a clock that was fast then would have the last word."""
    slower, asked = 1.0, list[list[Option]]()

    def seconds(
        p: Problem, some: Sequence[Option], dot_precision: str, timers: Any, failed: list[str]
    ) -> dict[Option, float]:
        asked.append(list(some))
        return {o: slower / (n + 1) for n, o in enumerate(some)}  # the last one is the best

    monkeypatch.setattr(tune_kernels, "measure_options", seconds)
    monkeypatch.setattr(tune_kernels, "device_name", lambda device: "a GPU")
    programs = [
        cuda_compiler.compile_model(read_model(MODELS["a convolution"]()), "fp16")
        .variant({})
        .program
    ]

    def tuned(most: int) -> Mapping[str, Option]:
        with Store.open(tmp_path) as store:
            given = programs, gpu_space.options, "cuda", "ieee", store, 60.0, most
            return tune_kernels.tune_programs(*given, lambda p, found: None, lambda: False).options

    before = tuned(4)
    count, slower = len(asked), 100.0
    after = tuned(5)
    first = {k: next(gpu_space.options(p)) for k, p in programs[0].problems.items()}
    more = {k: next(islice(gpu_space.options(p), 4, 5), None) for k, p in
            programs[0].problems.items()}  # fmt: skip
    wanted = [{first[k], before[k], o} for k, o in more.items() if o is not None]
    assert 0 < len(asked[count:]) == len(wanted)
    assert all(set(some) in wanted for some in asked[count:])
    assert {k: after[k] for k, o in more.items() if o} == {k: o for k, o in more.items() if o}


def test_measurements_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was measured on a GPU is taken from the store: another tuning measures nothing, and
    other precisions of products know nothing of it."""
    asked = []

    def seconds(
        p: Problem, some: Sequence[Option], dot_precision: str, timers: Any, failed: list[str]
    ) -> dict[Option, float]:
        asked.append(dot_precision)
        failed.append("a way: why")
        return {o: 1.0 / (n + 1) for n, o in enumerate(some)}

    monkeypatch.setattr(tune_kernels, "measure_options", seconds)
    monkeypatch.setattr(tune_kernels, "device_name", lambda device: "a GPU")
    m = MODELS["a convolution"]()
    programs = [cuda_compiler.compile_model(read_model(m), "fp16").variant({}).program]

    def tuned(dots: str) -> tune_kernels.TuningResult:
        with Store.open(tmp_path) as store:
            given = programs, gpu_space.options, "cuda", dots, store, 60.0, 4
            return tune_kernels.tune_programs(*given, lambda p, found: None, lambda: False)

    first = tuned("ieee")
    assert len(asked) > 0
    said = f"{len(asked)} options could not be measured, first a way: why"
    assert first.report.notes == (said,)
    last = {k: list(islice(gpu_space.options(p), 4))[-1] for k, p in programs[0].problems.items()}
    assert {k: o for k, o in last.items() if k in first.options} == first.options
    count = len(asked)
    assert tuned("ieee").options == first.options
    assert len(asked) == count
    tuned("tf32")
    assert len(asked) > count
    with Store.open(tmp_path) as store:
        assert tune_kernels.stored_options(store, "cuda", "ieee", vendor=True) == first.options
    exe = cuda_compiler.compile_model(read_model(m), "fp16", store=tmp_path)
    assert exe.variant({}).program.options.items() >= first.options.items()
    monkeypatch.setattr(tune_kernels, "device_name", lambda device: "another GPU")
    assert (
        cuda_compiler.compile_model(read_model(m), "fp16", store=tmp_path).compiler.tuned_options
        == {}
    )


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
        assert "dot rows=" in output


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


def test_large_constants_come_from_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """When options are timed: each run reads its own ones, and computes the same from the same."""
    made = (
        cuda_compiler.compile_model(read_model(MODELS["of a long sum"]()), "fp16")
        .variant({})
        .program
    )
    ways = ((p, o) for p in made.problems.values() for o in gpu_space.options(p, vendor=False))
    p, option = next((p, o) for p, o in ways if p.constants and o.algorithm == "split")
    r, fixed = gpu.build_running(p, option, "ieee", "cuda" if REAL else "cpu")
    assert fixed
    assert gpu.rotated_copies(r, fixed) == []
    monkeypatch.setattr(gpu, "MIN_ROTATED_BYTES", 1)
    monkeypatch.setattr(gpu, "MAX_COPIES", 3)
    some = gpu.rotated_copies(r, fixed)
    assert len(some) == 3
    r.launch()
    wanted = [x.clone() for x in r.inputs]
    own = {id(r.inputs[n]) for n in fixed}
    for other in some:
        read_ = {id(x) for launch in other.launches for x in launch[3]}
        assert not read_ & own
        assert read_ & {id(x) for x in r.inputs}
        other.launch()
        assert all(bool((a == b).all()) for a, b in zip(r.inputs, wanted, strict=True))
    tick = gpu_timer.graph_timer(r, 4, some)
    del some, other
    if REAL:
        pytest.importorskip("torch").cuda.empty_cache()
    assert tick() > 0


def test_the_best_few_are_timed_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is the best is said by many runs beside each other, of what was measured before, too;
    of one alone nothing is asked."""
    a, b, c, d, e = (Option.make("dot", rows=n) for n in range(1, 6))
    ms = {a: [1.0], b: [1.05] * 5 + [0.8], c: [1.5], d: [0.81]}  # then the last one each time
    runs: list[Option] = []

    class Made:
        def __init__(self, o: Option) -> None:
            self.o, self.times = o, list(ms[o])

        def compile(self, compilers: int) -> None:
            pass

        def __call__(self) -> float:
            runs.append(self.o)
            return self.times.pop(0) if len(self.times) > 1 else self.times[0]

    monkeypatch.setattr(gpu, "build_running", lambda p, o, dots: (Made(o), []))
    monkeypatch.setattr(gpu, "rotated_copies", lambda r, fixed: [])
    monkeypatch.setattr(gpu, "graph_timer", lambda r, times, others: r)
    held: dict[Option, gpu.TimedOption] = {}
    p: Any = None
    failed: list[str] = []
    found = gpu.measure_options(p, [a, b, c, e], "ieee", held, failed)  # e: none that runs
    assert failed == [f"{e}: KeyError: {e!r}"]
    assert found == {a: 1e-3, b: 0.8e-3, c: 1.5e-3}
    assert runs[-4:] == [a, b, a, b]
    assert {o: time for o, (time, _) in held.items()} == {a: 1e-3, b: 0.8e-3}
    found = gpu.measure_options(p, [d], "ieee", held, failed)
    assert len(failed) == 1
    assert found == pytest.approx({b: 0.8e-3, d: 0.81e-3})
    assert runs[-2:] == [b, d]
    assert gpu.measure_interleaved({a: Made(a)}) == {}


def test_features_of_every_option() -> None:
    """Of each model's problems, and of every way to compute them, for the ranking that learns."""
    lengths = set()
    for name in ("a block", "heads", "layer norm", "depthwise", "turned", "of a long sum"):
        made = cuda_compiler.compile_model(read_model(MODELS[name]()), "fp16").variant({}).program
        for p in made.problems.values():
            given = gpu_features.problem_numbers(p)
            assert len(given) == gpu_features.PROBLEM_LENGTH
            found = [gpu_features.gpu_option_features(given, o) for o in gpu_space.options(p)]
            assert np.isfinite(np.array(found)).all()
            lengths |= {len(f) for f in found}
    assert len(lengths) == 1


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
