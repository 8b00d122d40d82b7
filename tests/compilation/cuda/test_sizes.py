"""On a GPU: models of symbolic sizes, of which many come; and inputs that are left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import superopt
from superopt.compilation.cuda import gpu_inputs
from superopt.compilation.cuda.device import CudaDevice, open_gpu
from superopt.compilation.frontend.input_arrays import Sizes
from superopt.compilation.model.executable import Executable
from superopt.cost.machine import PROGRAM_MEMORY_DIVISOR
from tests.support.compilation.models import F, model, reference
from tests.support.gpu.compilation import near
from tests.support.gpu.device import REAL, cached_programs
from tests.support.gpu.models import drawn, node

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("interpreted")]

M = model(
    [node("MatMul", "x", "w", "a"), node("Tanh", "a", "y")], {"x": (F, ["n", 32])}, ["y"],
    {"w": drawn(32, 32, scale=0.2)},
)  # fmt: skip


def rows(n: int) -> dict[str, np.ndarray]:
    return {"x": drawn(n, 32)}


def same(exe: Any, n: int) -> None:
    near(exe.run(rows(n)), reference(M, rows(n)), "fp32")


@pytest.mark.parametrize("again", [False, True])
def test_those_used_longest_ago_go(
    again: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where all and a new one would take more than a part of the memory; compiled, or found."""
    monkeypatch.setenv("SUPEROPT_CACHE", str(tmp_path))
    path = tmp_path / "m.onnx"
    path.write_bytes(M.SerializeToString())
    for _ in range(1 + again):
        exe = superopt.compile(path, target="cuda")
        for n in range(1, 5):
            same(exe, n)
    assert len(exe.variants) == 4
    assert len(cached_programs(exe)) == 4 * again
    size = max(x.held_bytes for x in exe.variants.values())
    assert size > M.graph.initializer[0].dims[0] ** 2 * 4  # a copy of the weights
    limit = PROGRAM_MEMORY_DIVISOR * 7 * size // 2
    monkeypatch.setattr(CudaDevice, "memory_bytes", lambda device: limit)
    for n, left in ((1, {1, 2, 3, 4}), (5, {1, 4, 5}), (4, {1, 4, 5}), (6, {4, 5, 6})):
        same(exe, n)
        assert {dict(key)["n"] for key in exe.variants} == left
    monkeypatch.setattr(CudaDevice, "memory_bytes", lambda device: 0)
    for n in (2, 5):
        same(exe, n)
        assert len(exe.variants) == 1


def test_memory_is_the_device_s() -> None:
    device = open_gpu("fp32")
    assert device.memory_bytes() > 1 << 30
    if REAL:
        import torch

        assert device.memory_bytes() == torch.cuda.get_device_properties(0).total_memory


def test_sizes_that_come_once_run_in_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until that has taken as long as compiling would."""
    import torch

    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(CudaDevice, "eager_sizes", 2)
    exe = superopt.compile(M, target="cuda")
    for n in range(1, 8):
        same(exe, n)
    assert {dict(key)["n"] for key in exe.variants} == {1, 2}
    assert len(exe.shape_policy.fallback_times) == 5
    if not REAL:  # tensors of the processor stand for those on a GPU
        monkeypatch.setattr(gpu_inputs, "is_gpu_tensor", lambda x: isinstance(x, torch.Tensor))
    y = exe.run({"x": torch.from_numpy(rows(4)["x"]).to(exe.device.torch_device)})["y"]
    assert isinstance(y, torch.Tensor)
    assert y.device.type == exe.device.torch_device
    near({"y": y.cpu().numpy()}, reference(M, rows(4)), "fp32")
    assert len(exe.variants) == 2
    times = exe.shape_policy.fallback_times
    times |= dict.fromkeys(times, 1e9)
    same(exe, 5)
    assert {dict(key)["n"] for key in exe.variants} == {1, 2, 5}
    assert exe.fallback_nodes({"n": 6}) == []  # who asks for a size has it compiled
    assert len(exe.variants) == 4


def test_sizes_that_went_wait_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or each call would compile the model, where there is no room for all sizes that come."""
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(CudaDevice, "eager_sizes", 2)
    monkeypatch.setattr(CudaDevice, "memory_bytes", lambda device: 0)
    exe = superopt.compile(M, target="cuda")
    for n in range(1, 5):
        same(exe, n)
    times = exe.shape_policy.fallback_times
    times |= dict.fromkeys(times, 1e9)
    made = []
    compiled = Executable._compile

    def counted(self: Executable, key: Sizes, options: dict[str, str] | None) -> Any:
        made.append(dict(key)["n"])
        return compiled(self, key, options)

    monkeypatch.setattr(Executable, "_compile", counted)
    for n in (3, 4, 3, 4):
        same(exe, n)
    assert made == [3, 4]
    assert len(exe.shape_policy.compile_seconds) == 3  # beside the first one


def test_sizes_that_are_given_at_first() -> None:
    """As on the CPU: the model is compiled for these, and never for others if so asked."""
    pytest.importorskip("onnxruntime")
    exe = superopt.compile(M, target="cuda", shapes=[{"n": 3}, {"n": 5}], specialize="never")
    assert [dict(key)["n"] for key in exe.variants] == [3, 5]
    for n in (3, 4, 5):
        same(exe, n)
    assert len(exe.variants) == 2
    eager = superopt.compile(M, target="cuda", specialize="eager")
    for n in range(1, 4):
        same(eager, n)
    assert len(eager.variants) == 3


def test_an_input_with_a_value_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Left out, it says nothing of where outputs go."""
    import torch

    m = model([node("Add", "a", "k", "y")], {n: (F, [3]) for n in "ak"}, ["y"], {})
    m.graph.initializer.append(onnx.numpy_helper.from_array(drawn(3, of="k"), "k"))
    exe = superopt.compile(m, target="cuda")
    a, k = drawn(3), drawn(3, of="other")
    for _ in range(2):
        np.testing.assert_allclose(exe.run({"a": a})["y"], a + drawn(3, of="k"), rtol=1e-6)
        np.testing.assert_allclose(exe.run({"a": a, "k": k})["y"], a + k, rtol=1e-6)
    if not REAL:  # tensors of the processor stand for those on a GPU
        monkeypatch.setattr(gpu_inputs, "is_gpu_tensor", lambda x: isinstance(x, torch.Tensor))
    there = torch.from_numpy(a).to(exe.device.torch_device)
    for _ in range(2):
        y = exe.run({"a": there})["y"]
        assert isinstance(y, torch.Tensor)
        np.testing.assert_allclose(y.cpu().numpy(), a + drawn(3, of="k"), rtol=1e-6)
    assert isinstance(exe.run({"a": there, "k": k})["y"], np.ndarray)


def test_lazy_negatives_of_torch() -> None:
    """Its memory has the numbers of which these are the negatives."""
    import torch

    x = torch.complex(torch.zeros(3), torch.from_numpy(drawn(3))).conj().imag
    assert x.is_neg()
    m = model([node("Add", "a", "a", "y")], {"a": (F, [3])}, ["y"], {})
    for target in ("cpu", "cuda"):
        got = superopt.compile(m, target=target).run({"a": x})["y"]
        np.testing.assert_allclose(got, -2 * drawn(3), rtol=1e-6)
    if REAL:
        got = superopt.compile(m, target="cuda").run({"a": x.to("cuda")})["y"]
        np.testing.assert_allclose(got.cpu().numpy(), -2 * drawn(3), rtol=1e-6)
