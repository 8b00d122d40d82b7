"""What else a process does while it calls models on a GPU: other threads, forks, gradients,
inference mode, another GPU; and what no kernel can be made for."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import superopt
from superopt.compilation.cuda import gpu_inputs, segments
from superopt.compilation.model.executable import Executable
from superopt.compilation.runtime import fork_safety
from superopt.errors import UsageError
from superopt.kernels.runtime.gpu_device import copy_to_device
from superopt.kernels.runtime.gpu_timer import measure_ms
from superopt.kernels.triton import codegen
from tests.support.compilation.models import F, model, reference
from tests.support.gpu.compilation import near
from tests.support.gpu.device import REAL
from tests.support.gpu.models import I64, node

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("interpreted")]

ROWS = model([node("Softmax", "x", "y", axis=-1)], {"x": (F, ["n", 24])}, ["y"], {})


def rows(n: int) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(n).standard_normal((n, 24)).astype(np.float32)}


def test_nothing_is_kept_for_gradients() -> None:
    """Of what an input was computed from."""
    import torch

    to, x = torch.zeros(3), torch.ones(3, requires_grad=True)
    copy_to_device(to, x * 2)
    assert to.tolist() == [2, 2, 2]
    assert not to.requires_grad


def test_compiled_in_inference_mode() -> None:
    """It is called outside of it, too."""
    import torch

    exe = superopt.compile(ROWS, target="cuda")
    wanted = reference(ROWS, rows(3))
    with torch.inference_mode():
        near(exe.run(rows(3)), wanted, "fp32")
    near(exe.run(rows(3)), wanted, "fp32")


def test_compiling_keeps_torch_s_seeds() -> None:
    """Compiling draws no number of torch's own."""
    import torch

    before = torch.get_rng_state(), torch.cuda.get_rng_state() if REAL else None
    superopt.compile(ROWS, target="cuda", precision="tf32").run(rows(3))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert before[1] is None or torch.equal(torch.cuda.get_rng_state(), before[1])


def test_calls_like_the_last_one_are_not_checked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of tensors: only where types, shapes and names are the same, and it is compiled still."""
    import torch

    exe = superopt.compile(ROWS, target="cuda")
    if not REAL:  # tensors of the processor stand for those on a GPU
        monkeypatch.setattr(gpu_inputs, "is_gpu_tensor", lambda x: isinstance(x, torch.Tensor))
        monkeypatch.setattr(segments.GpuSegment, "gpu_number", -1)
    asked = []
    given = Executable.input_arrays

    def counted(self: Executable, feeds: dict[str, Any]) -> list[Any]:
        asked.append(len(feeds.get("x", ())))
        return given(self, feeds)

    monkeypatch.setattr(Executable, "input_arrays", counted)

    def same(n: int) -> None:
        x = torch.from_numpy(rows(n)["x"]).to(exe.device.torch_device)
        y = exe.run({"x": x})["y"]
        assert isinstance(y, torch.Tensor)
        near({"y": y.cpu().numpy()}, reference(ROWS, rows(n)), "fp32")

    for n in (3, 3, 4, 4, 3):
        same(n)
    assert asked == [3, 4, 3]
    exe.drop_variants()
    same(3)
    assert asked == [3, 4, 3, 3]
    near(exe.run(rows(3)), reference(ROWS, rows(3)), "fp32")  # numpy's give numpy's
    x = torch.zeros(3, 24, dtype=torch.float64, device=exe.device.torch_device)
    for wrong in ({"x": x}, {"x": x.float(), "z": x}, {"z": x}, {"x": torch.zeros(3, 25)}):
        with pytest.raises(UsageError):
            exe.run(wrong)


DOUBLE = TensorProto.DOUBLE
WITHOUT: dict[str, tuple[Callable[[], onnx.ModelProto], dict[str, np.ndarray], str]] = {
    "a function of doubles": (
        lambda: model([node("Tanh", "x", "a"), node("Neg", "a", "y")], {"x": (DOUBLE, [5])}, ["y"]),
        {"x": np.linspace(-1, 1, 5)}, "Triton has no tanh of f64",
    ),
    "powers of integers": (
        lambda: model([node("Pow", "x", "z", "y")], {"x": (I64, [3]), "z": (I64, [3])}, ["y"]),
        {"x": np.array([2, -3, 4]), "z": np.array([2, 3, 0])}, "Triton has no pow of i64",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WITHOUT)
def test_what_triton_has_no_words_for_runs_in_onnxruntime(name: str) -> None:
    make, given, why = WITHOUT[name]
    exe = superopt.compile(make(), target="cuda")
    got, wanted = exe.run(given), reference(make(), given)
    np.testing.assert_allclose(got["y"], wanted["y"], rtol=1e-12)
    assert why in [x for _, x in exe.fallback_nodes({})]


def test_tensors_of_too_many_elements_run_in_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [node("Relu", "x", "a"), node("ReduceMax", "a", "b", axes=[1]), node("Exp", "b", "y")]
    m = model(nodes, {"x": (F, [4, 24])}, ["y"])
    m.opset_import[0].version = 13
    monkeypatch.setattr(codegen, "MAX_BUFFER_ELEMENTS", 90)
    exe = superopt.compile(m, target="cuda")
    x = np.random.default_rng(0).standard_normal((4, 24)).astype(np.float32)
    near(exe.run({"x": x}), reference(m, {"x": x}), "fp32")
    some = {n.op.name: why for n, why in exe.fallback_nodes({})}
    assert "Relu" in some
    assert "indices of more than 32 bits" in some["Relu"]


@pytest.mark.parametrize("size", [2, "n"])
def test_a_model_that_only_onnxruntime_reads(size: int | str, tmp_path: Path) -> None:
    """Runs there, whole, as it does for a processor; and says so."""
    m = model([node("MeanVarianceNormalization", "x", "y")], {"x": (F, [size, 3, 4, 5])}, ["y"])
    m.opset_import[0].version = 13
    m.graph.output[0].type.tensor_type.ClearField("shape")
    x = {"x": np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype(np.float32)}
    exe = superopt.compile(m, target="cuda", precision="fp16")
    np.testing.assert_array_equal(exe.run(x)["y"], superopt.compile(m).run(x)["y"])
    ((_, why),) = exe.fallback_nodes({} if size == 2 else {"n": 2})
    assert why.startswith("onnxruntime reads the model, superopt does not")
    with pytest.raises(UsageError, match="cannot be saved"):
        exe.save(tmp_path / "m.superopt")


@pytest.mark.skipif(not hasattr(os, "fork") or REAL, reason="no fork, or CUDA, which outlives none")
def test_a_fork_waits_for_no_thread_that_is_not_in_it() -> None:
    exe = superopt.compile(ROWS, target="cuda")
    exe.run(rows(3))
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with exe.lock:
            held.set()
            over.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(60)
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        os._exit(0 if exe.run(rows(3))["y"].shape == (3, 24) else 1)
    over.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0


def test_a_fork_has_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    exe = superopt.compile(ROWS, target="cuda")
    exe.run(rows(3))
    exe.device = replace(exe.device, torch_device="cuda")
    with monkeypatch.context() as m:
        m.setattr(fork_safety, "lock_owners", {exe})
        fork_safety._replace_locks()  # as in a child
    with pytest.raises(UsageError, match=r"before this process was forked\n.*\nstart processes"):
        exe.run(rows(3))


@pytest.mark.skipif(not REAL, reason="threads of the interpreter are alike")
def test_another_thread_uses_the_gpu_while_it_compiles() -> None:
    import torch

    over, errors = threading.Event(), []

    def other() -> None:
        held: list[object] = []
        while not over.is_set():
            try:
                held.append(torch.empty(3 << 20, device="cuda"))
                if len(held) > 50:
                    held.clear()
                    torch.cuda.empty_cache()
            except Exception as e:
                errors.append(e)
                return

    thread = threading.Thread(target=other)
    thread.start()
    try:
        exe = superopt.compile(ROWS, target="cuda", precision="fp16")
        for n in range(2, 6):
            near(exe.run(rows(n)), reference(ROWS, rows(n)), "fp16")
    finally:
        over.set()
        thread.join()
    assert not errors


@pytest.mark.skipif(not REAL, reason="the interpreter has no GPU")
@pytest.mark.parametrize("tuned", [False, True])
def test_another_gpu_is_current_when_it_is_called(tuned: bool) -> None:
    import torch

    if torch.cuda.device_count() < 2:
        pytest.skip("there is one GPU")
    with torch.cuda.device(1):
        exe = superopt.compile(ROWS, target="cuda", precision="fp16")
        assert exe.gpu_number == 1
        exe.run(rows(3))
        if tuned:
            exe.tune({"n": 3}, budget=5, max_options=2)
    assert torch.cuda.current_device() == 0
    for n in (3, 4):
        near(exe.run(rows(n)), reference(ROWS, rows(n)), "fp16")
        x = torch.from_numpy(rows(n)["x"]).to("cuda:1")
        y = exe.run({"x": x})["y"]
        assert y.get_device() == 1
        near({"y": y.cpu().numpy()}, reference(ROWS, rows(n)), "fp16")
    assert torch.cuda.memory_allocated(0) == 0
    if tuned:  # what was tuned there first says nothing of where the next one is
        again = superopt.compile(ROWS, target="cuda", precision="fp16")
        assert again.gpu_number == 0
        again.tune({"n": 3}, budget=5, max_options=2)
        near(again.run(rows(3)), reference(ROWS, rows(3)), "fp16")


@pytest.mark.skipif(not REAL, reason="the interpreter has no GPU")
def test_a_graph_of_the_user_s_is_left_alone() -> None:
    """Torch has 32 streams, which are handed out in turn; from 2.11 on the end of a graph ends what
    is kept for the products of its stream, whoever else recorded there."""
    import torch

    cuda: Any = torch.cuda  # whose classes have no types
    a, b = (torch.randn(s, device="cuda").half() for s in ((64, 16384), (16384, 64)))
    own, graph, out = cuda.Stream(), cuda.CUDAGraph(), torch.empty(64, 64, device="cuda").half()
    with cuda.stream(own):
        torch.mm(a, b, out=out)
    torch.cuda.synchronize()
    with cuda.graph(graph, stream=own):
        torch.mm(a, b, out=out)
    graph.replay()
    before = out.clone()
    exe = superopt.compile(ROWS, target="cuda", precision="fp16")
    exe.run(rows(3))
    running = exe.variant({"n": 3}).only_step.gpu_program
    for _ in range(40):
        measure_ms(running, 1, 1)
    torch.cuda.empty_cache()
    there = [torch.full((1 << 24,), 7, dtype=torch.uint8, device="cuda") for _ in range(32)]
    graph.replay()
    assert bool((out == before).all())
    assert all(bool((x == 7).all()) for x in there)


@pytest.mark.skipif(not REAL, reason="the interpreter has no GPU")
def test_threads_compile_and_tune_at_once() -> None:
    """No recording survives that another thread waits for the whole GPU."""
    errors: list[BaseException] = []

    def one(n: int) -> None:
        try:
            for _ in range(2):
                exe = superopt.compile(ROWS, target="cuda", precision="fp16")
                exe.tune({"n": n}, budget=5, max_options=4)
                near(exe.run(rows(n)), reference(ROWS, rows(n)), "fp16")
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=one, args=(n,)) for n in range(2, 6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors
