"""`precision="bf16"` on a CPU: results, accuracy, caches, saved models, errors."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest

import superopt
from superopt.api.model_files import compile_model
from superopt.compilation.cpu.device import CpuDevice
from superopt.compilation.cpu.program_cache import open_program_cache
from superopt.compilation.frontend.compile_options import CompileOptions
from superopt.compilation.model.compiler import Compiler
from superopt.compilation.model.executable import Executable
from superopt.errors import UsageError
from superopt.ir.evaluate import evaluate
from superopt.kernels.processor import AMX
from superopt.plan.graph.round_operands import round_operands
from superopt.report.compilation.compile_report import compilation_text
from superopt.te.eval.domain import Reals
from superopt.te.expr.dtype import BF16, F64
from tests.support.kernels.bf16 import GRAPHS, require
from tests.support.kernels.graphs import graph_model

BF16_ALGORITHMS = {"amx_gemm", "bf16_gemm"}
MLP = """(float[n, 256] x, float[256, 256] w, float[256] wb, float[256, 64] w2) => (float[n, 64] y)
    { a = MatMul(x, w) b = Add(a, wb) c = Tanh(b) y = MatMul(c, w2) }"""


@pytest.fixture(autouse=True)
def amx() -> None:
    require(AMX)


def algorithms(exe: Executable, sizes: Mapping[str, int] | None = None) -> set[str]:
    found = exe.variant(sizes or {}).kernel_steps
    return {o.algorithm for s in found for o in s.program.options.values()}


def drawn(exe: Executable, shapes: Mapping[str, list[int]]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    return {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}


@pytest.mark.parametrize("name", ["epilogue", "3 x 3", "stride", "parts of a result"])
@pytest.mark.parametrize("threads", [1, 2])
def test_results_are_those_of_rounded_operands(name: str, threads: int) -> None:
    m = graph_model(GRAPHS[name])
    exe = superopt.compile(m, precision="bf16", threads=threads)
    assert algorithms(exe) & BF16_ALGORITHMS
    feeds = drawn(exe, {i.name: [d.dim_value for d in i.type.tensor_type.shape.dim]
                        for i in m.graph.input})  # fmt: skip
    (got,) = exe.run(feeds).values()
    (exact,) = evaluate(exe.model.graph, feeds, Reals(F64))
    (wanted,) = evaluate(round_operands(exe.model.graph, BF16), feeds, Reals(None))
    size = np.abs(exact).max()
    assert np.abs(got - wanted).max() < 3e-6 * size
    assert 1e-4 * size < np.abs(got - exact).max() < 2e-2 * size
    # without the precision the same call rounds nothing
    (plain,) = superopt.compile(m, threads=threads).run(feeds).values()
    assert np.abs(plain - exact).max() < 3e-6 * size


def test_accuracy_is_that_of_rounded_operands() -> None:
    exe = superopt.compile(graph_model(MLP), precision="bf16", shapes={"n": 40})
    found = exe.accuracy({"n": 40})
    assert found.passed, str(found)
    assert "in bf16: within the tolerance" in str(found)
    (y,) = found.outputs
    assert 1e-4 < y.max_error < 4 * y.original_max_error


@pytest.mark.parametrize("n", [40, 17, 130])
def test_symbolic_rows(n: int) -> None:
    exe = superopt.compile(graph_model(MLP), precision="bf16", specialize="eager")
    (x,) = drawn(exe, {"x": [n, 256]}).values()
    (got,) = exe.run({"x": x}).values()
    assert "amx_gemm" in algorithms(exe, {"n": n})
    (exact,) = evaluate(exe.model.graph, {"x": x}, Reals(F64))
    assert 1e-4 < np.abs(got - exact).max() / np.abs(exact).max() < 2e-2


def test_caches_hold_precisions_apart(tmp_path: Path) -> None:
    path = tmp_path / "mlp.onnx"
    onnx.save(graph_model(MLP.replace("[n,", "[48,")), path)
    x = np.random.default_rng(1).standard_normal((48, 256)).astype(np.float32)
    found = []
    for _ in range(2):  # the second time from the cache
        exes = [superopt.compile(path, precision=p) for p in ("fp32", "bf16")]
        found.append([e.run({"x": x})["y"] for e in exes])
        assert [e.precision for e in exes] == ["fp32", "bf16"]
    assert (found[0][0] == found[1][0]).all()
    assert (found[0][1] == found[1][1]).all()
    assert 1e-4 < np.abs(found[0][0] - found[0][1]).max() < 1


def test_caches_hold_instructions_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system does not permit AMX, code for it in the cache is not loaded."""
    options = CompileOptions(precision="bf16")

    def key() -> str:
        device = CpuDevice(1, "bf16")
        return open_program_cache(options, device, "digest", missing_compiler).key

    permitted = key()
    assert key() == permitted
    monkeypatch.setattr("superopt.kernels.runtime.amx.request_amx", lambda: False)
    assert key() != permitted


def missing_compiler() -> Compiler:
    raise AssertionError("the key of a cache needs no compiler")


def test_forked_processes_run_amx() -> None:
    exe = superopt.compile(graph_model(MLP.replace("[n,", "[48,")), precision="bf16")
    x = np.random.default_rng(1).standard_normal((48, 256)).astype(np.float32)
    wanted = exe.run({"x": x})["y"]
    if (child := os.fork()) == 0:
        os._exit(0 if (exe.run({"x": x})["y"] == wanted).all() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_saved_models_keep_their_precision(tmp_path: Path) -> None:
    exe = superopt.compile(graph_model(MLP), precision="bf16", shapes={"n": 24})
    x = np.random.default_rng(1).standard_normal((24, 256)).astype(np.float32)
    exe.save(tmp_path / "mlp.superopt")
    loaded = superopt.load(tmp_path / "mlp.superopt")
    assert loaded.precision == "bf16"
    assert (loaded.run({"x": x})["y"] == exe.run({"x": x})["y"]).all()


def test_tuning_measures_kernels_of_bfloat16(tmp_path: Path) -> None:
    m = graph_model(MLP.replace("[n,", "[48,"))
    report = superopt.tune(
        m, precision="bf16", budget=2, rewrites=False, store=tmp_path / "store.sqlite"
    )
    assert any(k.default.startswith("amx_gemm") for k in report.kernels)


def test_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    m = graph_model(MLP.replace("[n,", "[48,"))
    exe = superopt.compile(m, precision="bf16")
    with pytest.raises(UsageError, match="a shared object in bf16"):
        exe.export(tmp_path)
    with pytest.raises(UsageError, match="precisions are fp32, bf16"):
        superopt.compile(m, precision="fp16")
    monkeypatch.setenv("SUPEROPT_TARGET_CPU", "x86-64-v3")
    with pytest.raises(UsageError, match="lacks avx512bf16, avx512f and AMX"):
        superopt.compile(m, precision="bf16")


def test_the_report_names_the_precision(tmp_path: Path) -> None:
    path = tmp_path / "mlp.onnx"
    onnx.save(graph_model(MLP.replace("[n,", "[48,")), path)
    assert "for 1 thread, in bf16" in compilation_text(compile_model(path, precision="bf16"))
    assert "for 1 thread\n" in compilation_text(compile_model(path))
