"""Models on a GPU: in Triton's interpreter, which needs the extra `gpu`; on the GPU itself where
the environment has SUPEROPT_TEST_GPU=1."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import superopt
from superopt import cli
from superopt.cost.store import Store
from superopt.errors import UsageError
from superopt.kernels import gpu_program, gpu_space
from superopt.kernels.option import Option
from superopt.kernels.problem import Problem
from superopt.onnx_io.source import read
from superopt.pipeline import cuda, gpu_tune
from superopt.pipeline.cuda import PRECISIONS
from tests.plan.gpu_models import ATTENTION, I64, ONE, drawn, heads, node
from tests.plan.test_compile import F, model, reference

UNITS = {"fp32": 2e-6, "tf32": 3e-3, "fp16": 3e-3, "bf16": 3e-2}


pytestmark = pytest.mark.gpu
REAL = os.environ.get("SUPEROPT_TEST_GPU") == "1"


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels run in the interpreter; memory begins as what is no number."""
    if not REAL:
        monkeypatch.setenv("TRITON_INTERPRET", "1")
    for name in ("torch", "triton"):
        pytest.importorskip(name, reason=f"the extra gpu is not installed: no {name}")
    made = gpu_program.running

    def poisoned(*given: Any, **more: Any) -> gpu_program.Running:
        out = made(*given, **more)
        out.held[0].fill_(255)
        for x in out.outputs:
            x.fill_(float("nan") if x.is_floating_point() else 7)
        return out

    monkeypatch.setattr(cuda, "running", poisoned)


def conv(c: int, k: int, size: int, kernel: int, **how: Any) -> onnx.ModelProto:
    groups = how.get("group", 1)
    w = drawn(k, c // groups, kernel, kernel, scale=(c // groups * kernel**2) ** -0.5)
    nodes = [node("Conv", "x", "w", "b", "a", **how), node("Relu", "a", "y")]
    return model(nodes, {"x": (F, [1, c, size, size])}, ["y"], {"w": w, "b": drawn(k)})


def block() -> onnx.ModelProto:
    """A residual block of which one side is a projection, pooled, and a classifier."""
    nodes = [
        node("Conv", "x", "w1", "a", pads=[1] * 4), node("Relu", "a", "b"),
        node("Conv", "b", "w2", "c", pads=[1] * 4), node("Conv", "x", "w3", "d"),
        node("Add", "c", "d", "e"), node("Relu", "e", "f"), node("GlobalAveragePool", "f", "g"),
        node("Flatten", "g", "h"), node("Gemm", "h", "w4", "b4", "y", transB=1),
    ]  # fmt: skip
    known = {
        "w1": drawn(32, 16, 3, 3, scale=0.1), "w2": drawn(32, 32, 3, 3, scale=0.1),
        "w3": drawn(32, 16, 1, 1, scale=0.2), "w4": drawn(40, 32, scale=0.2), "b4": drawn(40),
    }  # fmt: skip
    return model(nodes, {"x": (F, [2, 16, 9, 7])}, ["y"], known)


MODELS = {
    "a convolution": lambda: conv(16, 24, 9, 3, pads=[1] * 4),
    "of few channels": lambda: conv(3, 20, 13, 5, strides=[2, 2], pads=[2] * 4),
    "pointwise": lambda: conv(40, 33, 7, 1),
    "dilated": lambda: conv(32, 16, 12, 3, dilations=[2, 2], pads=[2] * 4),
    "depthwise": lambda: conv(24, 24, 9, 3, group=24, pads=[1] * 4),
    "in groups": lambda: conv(24, 36, 8, 3, group=3),
    "of a long sum": lambda: conv(512, 16, 4, 1),
    "of a prime sum": lambda: conv(211, 16, 4, 1),
    "of a few terms": lambda: conv(11, 16, 5, 1),
    "a block": block,
    **ATTENTION,
    **ONE,
    "layer norm": lambda: model(
        [node("LayerNormalization", "x", "s", "b", "y", axis=-1)], {"x": (F, [3, 5, 50])}, ["y"],
        {"s": drawn(50), "b": drawn(50)},
    ),
    "one row": lambda: model(
        [node("MatMul", "x", "w", "a"), node("Tanh", "a", "y")], {"x": (F, [1, 300])}, ["y"],
        {"w": drawn(300, 70, scale=0.05)},
    ),
    "powers": lambda: model(
        [node("Pow", "x", "two", "a"), node("Pow", "z", "x", "b"), node("Add", "a", "b", "y")],
        {"x": (F, [7, 9]), "z": (F, [7, 9])}, ["y"], {"two": np.float32(2)},
    ),
    "joined": lambda: model(
        [node("Relu", "x", "a"), node("Neg", "x", "b"), node("Concat", "a", "b", "y", axis=1)],
        {"x": (F, [2, 5, 6])}, ["y"], {},
    ),
    "rows of a table": lambda: model(
        [node("Gather", "w", "i", "a"), node("ReduceSum", "a", "axes", "y")],
        {"i": (I64, [2, 6])}, ["y"], {"w": drawn(30, 20), "axes": np.array([1])},
    ),
    "pooled": lambda: model(
        [node("MaxPool", "x", "a", kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4),
         node("AveragePool", "a", "y", kernel_shape=[2, 2])], {"x": (F, [1, 8, 11, 9])}, ["y"], {},
    ),
}  # fmt: skip


def feeds(m: onnx.ModelProto) -> dict[str, np.ndarray]:
    out = {}
    for v in m.graph.input:
        shape = [d.dim_value or 3 for d in v.type.tensor_type.shape.dim]
        whole = v.type.tensor_type.elem_type != F
        rng = np.random.default_rng(len(v.name))
        out[v.name] = rng.integers(0, 30, shape) if whole else drawn(*shape) + (v.name == "z") * 5
    return out


def near(got: Mapping[str, Any], wanted: Mapping[str, Any], precision: str) -> None:
    assert list(got) == list(wanted)
    for name, b in wanted.items():
        a = got[name]
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        size = max(float(np.abs(b.astype(np.float64)).max()), 1e-30)
        assert np.abs(a.astype(np.float64) - b).max() <= UNITS[precision] * size


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("name", MODELS)
def test_the_same(name: str, precision: str) -> None:
    m = MODELS[name]()
    given = feeds(m)
    exe = superopt.compile(m, target="cuda", precision=precision)
    near(exe.run(given), reference(m, given), precision)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_each_precision(precision: str) -> None:
    m = MODELS["a block"]()
    given = feeds(m)
    exe = superopt.compile(m, target="cuda", precision=precision)
    got = exe(**given)
    near(got, reference(m, given), precision)
    exact = superopt.compile(m, target="cuda").run(given)
    same = all(np.array_equal(got[k], exact[k]) for k in got)
    assert same == (precision == "fp32")


@pytest.mark.parametrize(
    "name", ["a convolution", "of a long sum", "ragged heads", "depthwise", "turned"]
)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_every_option(name: str, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ways to compute a problem do not change what it is: of each kind, and of blocks far apart."""
    m = MODELS[name]()
    given, wanted = feeds(m), reference(m, feeds(m))
    tried = set()
    for turn in range(6):

        def choose(p: Problem, _: Option | None, turn: int = turn) -> Any:
            some = list(dict.fromkeys(gpu_space.options(p)))
            option = some[turn * max(len(some) // 6, 1) % len(some)]
            tried.add(option)
            return gpu_space.chosen(p, option)

        monkeypatch.setattr(gpu_space, "choice", choose)
        near(cuda.compile(read(m), precision).run(given), wanted, precision)
    assert len(tried) > 3


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_is_one_kernel(name: str) -> None:
    """Of scores, softmax and product, unless the float class keeps products as they are."""
    m = ATTENTION[name]()
    made = cuda.compile(read(m), "fp16").variant({}).program
    assert [o.algorithm for o in made.options.values()].count("online") == 1
    assert "rows" not in [o.algorithm for o in made.options.values()]
    exact = cuda.compile(read(m), "fp32", "E1")
    assert "rows" in [o.algorithm for o in exact.variant({}).program.options.values()]
    near(exact.run(feeds(m)), reference(m, feeds(m)), "fp32")


def test_rows_of_which_nothing_is_left() -> None:
    """Where all keys are masked there is no number, and the other rows have theirs."""
    mask = np.zeros((1, 1, 70, 70), bool)
    mask[..., 7, :] = True
    m = heads(70, 1, 16, mask=mask, chosen=True)
    given, wanted = feeds(m), reference(m, feeds(m))["y"]
    got = cuda.compile(read(m), "fp32").run(given)["y"]
    assert np.isnan(wanted[:, 7]).all()
    assert np.array_equal(np.isnan(got), np.isnan(wanted))
    near({"y": np.nan_to_num(got)}, {"y": np.nan_to_num(wanted)}, "fp32")


@pytest.mark.parametrize(
    ("name", "kernels"), [("branches", 5), ("products", 3), ("rotary", 2), ("columns", 6)]
)
def test_how_many_kernels(name: str, kernels: int) -> None:
    made = cuda.compile(read(ONE[name]()), "fp16").variant({})
    assert len(made.running.launches) == kernels


def test_symbolic_sizes() -> None:
    m = MODELS["layer norm"]()
    dim = m.graph.input[0].type.tensor_type.shape.dim[1]
    dim.Clear()
    dim.dim_param = "n"
    m.graph.output[0].type.tensor_type.ClearField("shape")
    exe = superopt.compile(m, target="cuda")
    for n in (1, 4, 9):
        given = {"x": drawn(3, n, 50)}
        near(exe.run(given), reference(m, given), "fp32")
    assert len(exe.variants) == 3


def test_errors() -> None:
    m = MODELS["pointwise"]()
    with pytest.raises(UsageError, match="there are fp32, tf32, fp16, bf16"):
        superopt.compile(m, target="cuda", precision="int4")
    with pytest.raises(UsageError, match="kernels of the processor are fp32"):
        superopt.compile(m, precision="fp16")
    exe = superopt.compile(m, target="cuda")
    with pytest.raises(UsageError, match="they are given by name"):
        exe.run(3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no value for input 'x'"):
        exe.run({})
    with pytest.raises(UsageError, match="no input 'u'"):
        exe.run({"u": drawn(1)})
    with pytest.raises(UsageError, match="float64"):
        exe.run({"x": drawn(1, 40, 7, 7).astype(np.float64)})
    with pytest.raises(UsageError):
        exe.run({"x": drawn(1, 40, 7, 8)})


def between() -> onnx.ModelProto:
    """Kernels before and behind a node that has none; and outputs that are inputs."""
    nodes = [
        node("MatMul", "x", "w", "a"), node("Softmax", "a", "b", axis=-1),
        node("LpNormalization", "b", "c0", axis=-1), node("Unique", "c0", "c", sorted=0),
        node("MatMul", "b", "v", "d"), node("Relu", "d", "y"), node("Size", "c", "n"),
    ]  # fmt: skip
    known = {"w": drawn(512, 384, scale=0.05), "v": drawn(384, 256)}
    return model(nodes, {"x": (F, [128, 512])}, ["y", "n", "x"], known)


def test_what_has_no_kernel_runs_in_onnxruntime() -> None:
    m = between()
    exe = superopt.compile(m, target="cuda", precision="fp16")
    got, wanted = exe.run(feeds(m)), reference(m, feeds(m))
    near({"y": got["y"]}, {"y": wanted["y"]}, "fp16")
    assert np.array_equal(got["x"], wanted["x"])
    assert got["n"].dtype == wanted["n"].dtype
    fallen = {n.op.name: why for n, why in exe.fallen({})}
    assert "Unique" in fallen
    assert "MatMul" not in fallen


def test_it_is_saved(tmp_path: Path) -> None:
    m = MODELS["a block"]()
    exe = superopt.compile(m, target="cuda", precision="fp16")
    exe.save(tmp_path / "m.superopt")
    again = superopt.load(tmp_path / "m.superopt")
    assert isinstance(again, cuda.OnGpu)
    assert again.precision == "fp16"
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
    assert found.ok, str(found)
    assert [x.name for x in found.outputs] == ["y"]
    assert f"in {precision}: within the tolerance" in str(found)
    run = cuda.OnGpu.run

    def wrong(self: cuda.OnGpu, given: Mapping[str, Any]) -> dict[str, Any]:
        return {k: x * np.float32(1.1) for k, x in run(self, given).items()}

    monkeypatch.setattr(cuda.OnGpu, "run", wrong)
    assert not exe.accuracy().ok
    assert "NOT within" in str(exe.accuracy())


def test_measurements_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was measured on a GPU is taken from the store: another tuning measures nothing, and
    other precisions of products know nothing of it."""
    asked = []

    def seconds(p: Problem, some: Sequence[Option], dots: str) -> dict[Option, float]:
        asked.append(dots)
        return {o: 1.0 / (n + 1) for n, o in enumerate(some)}

    monkeypatch.setattr(gpu_tune, "seconds", seconds)
    monkeypatch.setattr(gpu_tune, "name", lambda device: "a GPU")
    m = MODELS["a convolution"]()
    programs = [cuda.compile(read(m), "fp16").variant({}).program]

    def tuned(dots: str) -> gpu_tune.Found:
        with Store.open(tmp_path) as store:
            given = programs, "cuda", dots, store, 60.0, 4
            return gpu_tune.tuned(*given, lambda p, found: None, lambda: False)

    first = tuned("ieee")
    assert len(asked) > 0
    last = {k: list(islice(gpu_space.options(p), 4))[-1] for k, p in programs[0].problems.items()}
    assert {k: o for k, o in last.items() if k in first.chosen} == first.chosen
    count = len(asked)
    assert tuned("ieee").chosen == first.chosen
    assert len(asked) == count
    tuned("tf32")
    assert len(asked) > count
    with Store.open(tmp_path) as store:
        assert gpu_tune.known(store, "cuda", "ieee") == first.chosen
    exe = cuda.compile(read(m), "fp16", store=tmp_path)
    assert exe.variant({}).program.options.items() >= first.chosen.items()
    monkeypatch.setattr(gpu_tune, "name", lambda device: "another GPU")
    assert cuda.compile(read(m), "fp16", store=tmp_path).chosen == {}


@pytest.mark.parametrize("command", ["compile", "profile", "run", "tune"])
def test_the_commands(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    m = MODELS["a convolution"]()
    path, x, y = tmp_path / "m.onnx", tmp_path / "x.npz", tmp_path / "y.npz"
    onnx.save(m, path)
    np.savez(x, **feeds(m))
    more = {
        "compile": ["--dump", str(tmp_path / "dump")],
        "profile": ["--seconds", "0.01"],
        "run": ["--inputs", str(x), "-o", str(y)],
        "tune": ["--budget", "1s", "--store", str(tmp_path / "store")],
    }[command]
    given = [command, str(path), "--target", "cuda", "--precision", "fp16", *more]
    assert cli.run(given) == 0
    output = capsys.readouterr().out
    if command == "compile":
        assert "a GPU, in fp16" in output
        (text,) = [p for p in (tmp_path / "dump").glob("*.triton.py") if "tl.dot" in p.read_text()]
        assert "@triton.jit" in text.read_text()
    if command == "run":
        near(np.load(y), reference(m, feeds(m)), "fp16")
    if command == "profile":
        assert "dot rows=" in output


COMPILED = """
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
import sys, triton
from superopt.kernels.gpu_run import functions
from superopt.kernels.gpu_text import printed
from superopt.onnx_io.source import read
from superopt.pipeline import cuda
from tests.plan.test_cuda import MODELS

names = {"f16": "fp16", "f32": "fp32"}
cuda.device = lambda: "cpu"
cuda.running = lambda calls, *rest: calls
cuda.Part = lambda s, made, calls: calls
for precision in ("fp16", "tf32"):
    exe = cuda.compile(read(MODELS[sys.argv[1]]()), precision)
    (calls,) = exe._steps(exe.model, {})
    for c in calls:
        text = printed(c.kernel, exe.dots, early=True)
        for x in text.launches:
            f = functions(text)[x.name]
            kinds = [f"*{names.get(t.dtype.name, t.dtype.name)}" for t in x.buffers]
            known = {(n,): [["tt.divisibility", 16]] for n in range(len(kinds))}
            source = ASTSource(f, dict(zip(f.arg_names, kinds, strict=True)), {}, known)
            how = {"num_warps": c.warps, "num_stages": c.stages}
            made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=how)
            assert len(made.asm["cubin"]) > 0
    print(precision, len(calls))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["a block", "ragged heads", "layer norm", "depthwise", "turned", "columns", "rotary"]
)
def test_kernels_compile_for_sm_90(name: str) -> None:
    """To machine code, without a GPU; in a process without the interpreter."""
    plain = {n: v for n, v in os.environ.items() if n != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", COMPILED, name], env=plain, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["fp16", "tf32"]


@pytest.mark.parametrize("missing", ["torch", "triton", ""])
def test_what_is_missing_is_said(missing: str) -> None:
    """Without the extra, and without a device; in another process, which has no interpreter."""
    code = (
        "import sys, superopt, onnx\n"
        f"sys.modules[{missing!r}] = None\n"
        "from tests.plan.test_cuda import MODELS\n"
        "try: superopt.compile(MODELS['joined'](), target='cuda')\n"
        "except superopt.UsageError as e: print(e)\n"
    )
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    env["CUDA_VISIBLE_DEVICES"] = ""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True
    )
    wanted = f"{missing} is not installed" if missing else "torch finds no CUDA device here"
    assert wanted in done.stdout
    assert 'pip install "superopt[gpu]"' in done.stdout
