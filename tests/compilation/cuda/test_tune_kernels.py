"""Tuning for a GPU: what is measured, how options are timed, and what the store keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import superopt
from superopt.compilation.cuda import load_compiler, tune_kernels
from superopt.compilation.model.executable import Executable
from superopt.cost import gpu_features
from superopt.cost.store import Store
from superopt.errors import UsageError
from superopt.ir import graph as ir_graph
from superopt.jobs import tune_cuda
from superopt.jobs.graph_rewrites import CompiledSearch, FoundRewrites
from superopt.kernels.algorithms import space
from superopt.kernels.algorithms.problem import Problem
from superopt.kernels.loops.option import Option
from superopt.kernels.runtime import gpu_timer
from superopt.onnx_io.read.source import read_model
from superopt.plan.timing import gpu
from superopt.report.compilation.compile_report import TuningReport, search_text
from tests.support.gpu.device import REAL, cached_programs
from tests.support.gpu.models import MODELS
from tests.support.optimization.models import FIRE_MODULE, data

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("interpreted")]


def test_what_tune_does_not_know(tmp_path: Path) -> None:
    m = MODELS["pointwise"]()
    with pytest.raises(UsageError, match="target rocm is unknown"):
        superopt.tune(m, target="rocm")
    with pytest.raises(UsageError, match="precisions are fp32, bf16"):
        superopt.tune(m, precision="fp16")
    found = superopt.tune(m, target="cuda", budget=1, store=tmp_path / "store")
    assert any("interpreter" in note for note in found.notes) != REAL


def test_seconds_of_tuning(monkeypatch: pytest.MonkeyPatch) -> None:
    """By default less than two minutes on a GPU, with what compiling takes."""
    asked, searched = [], []

    def search(source: Any, search: CompiledSearch, shapes: Any, budget: float, *more: Any) -> Any:
        searched.append((search.target, search.precision, budget))
        return FoundRewrites()

    def tune(self: Executable, sizes: Any, *, budget: float, **more: Any) -> Any:
        asked.append(budget)
        return TuningReport((), 0.0)

    monkeypatch.setattr(Executable, "tune", tune)
    monkeypatch.setattr(tune_cuda, "search_and_store", search)
    m = MODELS["a convolution"]()
    superopt.tune(m, target="cuda")
    superopt.compile(m, target="cuda", tune=7)
    superopt.compile(m, target="cuda", search=10, precision="fp16")
    superopt.compile(m, target="cuda")
    assert [pytest.approx(each, abs=5) for each in (90.0, 7.0, 10.0)] == asked
    assert searched == [("cuda", "fp32", 54.0), ("cuda", "fp16", 6.0)]


@pytest.mark.skipif(REAL, reason="the rewrites are chosen by predicted costs")
def test_a_search_for_a_gpu_that_is_not_here_is_predicted_and_kept(tmp_path: Path) -> None:
    model, path = data(FIRE_MODULE), tmp_path / "fire.onnx"
    path.write_bytes(model)
    kept: dict[str, Any] = {"target": "cuda", "precision": "fp16", "store": tmp_path / "store"}
    x = {"x": np.random.default_rng(0).standard_normal((1, 16, 13, 13)).astype(np.float32)}
    before = superopt.compile(path, **kept)
    assert conv_count(before) == 2
    found = superopt.tune(path, budget=20, **kept)
    assert found.rewrites > 0
    assert found.faster > 1
    assert "faster, predicted for the kernels of an NVIDIA H100 in fp16" in search_text(found)
    after = superopt.compile(path, **kept)
    assert conv_count(after) == 1
    np.testing.assert_allclose(after(**x)["y"], before(**x)["y"], rtol=2e-2, atol=2e-2)
    assert conv_count(superopt.compile(path, **{**kept, "precision": "tf32"})) == 2
    assert conv_count(superopt.compile(path, **kept, float_class="E1")) == 2
    again = superopt.compile(path, **kept)
    np.testing.assert_array_equal(again(**x)["y"], after(**x)["y"])
    assert len(cached_programs(again)) == 1


def conv_count(exe: Executable) -> int:
    return sum(n.op.name == "Conv" for n in ir_graph.nodes(exe.model.graph))


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
        load_compiler.compile_model(read_model(MODELS["a convolution"]()), "fp16")
        .variant({})
        .program
    ]

    def tuned(most: int) -> Mapping[str, Option]:
        with Store.open(tmp_path) as store:
            given = (
                programs,
                partial(space.options, target="cuda"),
                "cuda",
                "ieee",
                store,
                60.0,
                most,
            )
            return tune_kernels.tune_programs(*given, lambda p, found: None, lambda: False).options

    before = tuned(4)
    count, slower = len(asked), 100.0
    after = tuned(5)
    first = {k: next(space.options(p, "cuda")) for k, p in programs[0].problems.items()}
    more = {k: next(islice(space.options(p, "cuda"), 4, 5), None) for k, p in
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
    programs = [load_compiler.compile_model(read_model(m), "fp16").variant({}).program]

    def tuned(dots: str) -> tune_kernels.TuningResult:
        with Store.open(tmp_path) as store:
            given = programs, partial(space.options, target="cuda"), "cuda", dots, store, 60.0, 4
            return tune_kernels.tune_programs(*given, lambda p, found: None, lambda: False)

    first = tuned("ieee")
    assert len(asked) > 0
    said = f"{len(asked)} options could not be measured, first a way: why"
    assert first.report.notes == (said,)
    last = {
        k: list(islice(space.options(p, "cuda"), 4))[-1] for k, p in programs[0].problems.items()
    }
    assert {k: o for k, o in last.items() if k in first.options} == first.options
    count = len(asked)
    assert tuned("ieee").options == first.options
    assert len(asked) == count
    tuned("tf32")
    assert len(asked) > count
    with Store.open(tmp_path) as store:
        assert tune_kernels.stored_options(store, "cuda", "ieee", vendor=True) == first.options
    exe = load_compiler.compile_model(read_model(m), "fp16", store=tmp_path)
    assert exe.variant({}).program.options.items() >= first.options.items()
    monkeypatch.setattr(tune_kernels, "device_name", lambda device: "another GPU")
    assert (
        load_compiler.compile_model(read_model(m), "fp16", store=tmp_path).compiler.tuned_options
        == {}
    )


def test_large_constants_come_from_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """When options are timed: each run reads its own ones, and computes the same from the same."""
    made = (
        load_compiler.compile_model(read_model(MODELS["of a long sum"]()), "fp16")
        .variant({})
        .program
    )
    ways = ((p, o) for p in made.problems.values() for o in space.options(p, "cuda", vendor=False))
    p, option = next((p, o) for p, o in ways if p.constants and o.algorithm == "split_k_gemm")
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


def test_finalists_are_timed_interleaved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is the best is said by many runs beside each other, of what was measured before, too;
    of one alone nothing is asked."""
    a, b, c, d, e = (Option.make("gemm", rows=n) for n in range(1, 6))
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
        made = load_compiler.compile_model(read_model(MODELS[name]()), "fp16").variant({}).program
        for p in made.problems.values():
            given = gpu_features.problem_numbers(p)
            assert len(given) == gpu_features.PROBLEM_LENGTH
            found = [gpu_features.gpu_option_features(given, o) for o in space.options(p, "cuda")]
            assert np.isfinite(np.array(found)).all()
            lengths |= {len(f) for f in found}
    assert len(lengths) == 1
