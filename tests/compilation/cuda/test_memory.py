"""On a GPU: no memory left, tensors on another one, and none at all."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import superopt
from superopt.compilation.cuda import gpu_inputs, load_program
from superopt.errors import OutOfMemory, UsageError
from superopt.kernels.loops.option import Option
from superopt.kernels.runtime.gpu_program import GpuProgram, build_program
from superopt.kernels.triton.compiler import TritonCompileError
from tests.support.compilation.models import F, model, reference
from tests.support.gpu.compilation import near
from tests.support.gpu.device import REAL
from tests.support.gpu.models import drawn, node

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("interpreted")]

ROWS = model([node("Softmax", "x", "y", axis=-1)], {"x": (F, ["n", 24])}, ["y"], {})


def rows(n: int) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(n).standard_normal((n, 24)).astype(np.float32)}


def test_sizes_before_go_where_there_is_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    exe = superopt.compile(ROWS, target="cuda")

    def two(*given: Any, **how: Any) -> GpuProgram:
        """Memory for two."""
        if len(exe.variants) == 2:
            raise RuntimeError("CUDA out of memory")
        return build_program(*given, **how)

    monkeypatch.setattr(load_program, "build_program", two)
    for n in (3, 4, 5, 3):
        near(exe.run(rows(n)), reference(ROWS, rows(n)), "fp32")
    assert [dict(key) for key in exe.variants] == [{"n": 5}, {"n": 3}]


def test_no_memory_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*given: Any, **how: Any) -> GpuProgram:
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr(load_program, "build_program", none)
    with pytest.raises(OutOfMemory, match=r"out of memory on the device\n.*bytes\npass smaller"):
        superopt.compile(ROWS, target="cuda").run(rows(3))


def test_what_triton_does_not_compile_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*given: Any, **how: Any) -> GpuProgram:
        raise TritonCompileError("k1: Triton does not compile it: at 3:4:\n  a cause")

    monkeypatch.setattr(load_program, "build_program", none)
    with pytest.raises(UsageError, match=r"cannot be compiled .*\n.*k1: .* at 3:4: a cause\nuse"):
        superopt.compile(ROWS, target="cuda").run(rows(3))


@pytest.mark.parametrize("refuses", [1, 3, 9])
def test_another_way_where_triton_does_not_compile_one(
    refuses: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some are tried; then it is said."""
    asked = []

    def picky(calls: Any, *given: Any, **how: Any) -> GpuProgram:
        last = calls[-1]
        asked.append((last.kernel.body, last.warps, last.stages))
        if len(asked) <= refuses:
            raise TritonCompileError("no", f"{last.kernel.name}_1")
        return build_program(calls, *given, **how)

    nodes = [node("MatMul", "x", "w", "y")]
    m = model(nodes, {"x": (F, [64, 64])}, ["y"], {"w": drawn(64, 64, scale=0.1)})
    given = {"x": drawn(64, 64)}
    monkeypatch.setattr(load_program, "build_program", picky)
    if refuses == 9:
        with pytest.raises(UsageError, match="cannot be compiled for this GPU"):
            superopt.compile(m, target="cuda")
        assert len(asked) == 4
    else:
        got = superopt.compile(m, target="cuda").run(given)
        near(got, reference(m, given), "fp32")
        assert len(asked) == refuses + 1
    assert len(set(asked)) == len(asked)


def test_no_way_is_given_twice() -> None:
    """Though it was not taken."""
    ways = [Option.make("gemm", rows=n) for n in range(9)]
    made: Any = SimpleNamespace(
        kernel_calls=lambda: (SimpleNamespace(function=0),), call_problems=["key"],
        options={"key": ways[0]},
        kernels={0: SimpleNamespace(name="k1")}, problems={"key": None},
    )  # fmt: skip
    tried: dict[str, set[Option]] = {}

    def next_one() -> Option:
        given = "m", made, TritonCompileError("no", "k1_2"), lambda p: iter(ways), tried
        return load_program.next_option(*given)["key"]

    assert [next_one() for _ in range(load_program.MAX_TRIED_OPTIONS - 1)] == ways[
        1 : load_program.MAX_TRIED_OPTIONS
    ]
    with pytest.raises(UsageError, match="cannot be compiled"):
        next_one()


def test_tensors_of_another_gpu_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    exe = superopt.compile(ROWS, target="cuda")
    exe.run(rows(3))
    x = torch.from_numpy(rows(3)["x"])
    if not REAL:  # a tensor of the processor stands for one of another GPU
        monkeypatch.setattr(gpu_inputs, "is_gpu_tensor", lambda x: isinstance(x, torch.Tensor))
        step = exe.variant({"n": 3}).only_step
        monkeypatch.setattr(type(step), "gpu_number", 1)
    elif torch.cuda.device_count() > 1:
        x = x.to("cuda:1")
    else:
        pytest.skip("there is one GPU")
    with pytest.raises(UsageError, match=r"input 'x' is on cuda:.*\n.*compiled for cuda:"):
        exe.run({"x": x})


@pytest.mark.parametrize("missing", ["torch", "triton", ""])
def test_what_is_missing_is_said(missing: str) -> None:
    """Without the extra, and without a device; in another process, which has no interpreter."""
    code = (
        "import sys, superopt, onnx\n"
        f"sys.modules[{missing!r}] = None\n"
        "from tests.support.gpu.models import MODELS\n"
        "try: superopt.compile(MODELS['joined'](), target='cuda')\n"
        "except superopt.UsageError as e: print(e)\n"
    )
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    env["CUDA_VISIBLE_DEVICES"] = ""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True
    )
    built = pytest.importorskip("torch").version.cuda is not None
    none = "torch finds no CUDA device here" if built else "is built without CUDA"
    wanted = f"{missing} is not installed" if missing else none
    assert wanted in done.stdout
    assert 'pip install "superopt-onnx[gpu]"' in done.stdout
