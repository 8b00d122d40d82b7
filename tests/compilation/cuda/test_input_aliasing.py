"""On a GPU: calls that are given the program's own memory, where inputs are read and outputs
lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import superopt
from superopt.compilation.cuda import gpu_inputs
from superopt.kernels.cuda import driver
from superopt.kernels.cuda.input_aliasing import WrittenRanges
from superopt.kernels.runtime.gpu_device import to_array
from superopt.kernels.triton import compiler
from tests.support.compilation.models import F, model
from tests.support.gpu import fake_cuda
from tests.support.gpu.device import REAL, cached_programs
from tests.support.gpu.models import drawn, node

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("interpreted")]
A, B = drawn(6, 4, of="a"), drawn(6, 4, of="b")


def given(a: Any, b: Any) -> dict[str, Any]:
    """In the interpreter arrays of the same memory."""
    return {n: x if REAL else x.numpy() for n, x in (("a", a), ("b", b))}


def host(x: Any) -> np.ndarray:
    return to_array(x) if REAL else x


@pytest.mark.parametrize("again", [False, True])
def test_another_input_s_buffer(
    again: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is read as it was before the call: of a program that was compiled, or found."""
    monkeypatch.setenv("SUPEROPT_CACHE", str(tmp_path))
    nodes = [node("Add", "b", "b", "t"), node("Add", "a", "t", "y")]
    path = tmp_path / "m.onnx"
    path.write_bytes(model(nodes, {n: (F, [6, 4]) for n in "ab"}, ["y"], {}).SerializeToString())
    for _ in range(1 + again):
        exe = superopt.compile(path, target="cuda")
        held = exe.buffers()
    assert bool(cached_programs(exe)) == again
    a, b = held["a"], held["b"]

    def written() -> None:
        for to, x in ((a, A), (b, B)):
            to.copy_(a.new_tensor(x))

    for x, y, wanted in (
        (a, b, A + 2 * B),  # in place
        (b, a, B + 2 * A),
        (b, b, 3 * B),
        (a.view(4, 6).t(), a, A.reshape(4, 6).T + 2 * A),
        (b.view(-1)[:1].expand(6, 4), b, B[0, 0] + 2 * B),
    ):
        written()
        got = exe.run(given(x, y))["y"]
        np.testing.assert_allclose(host(got), wanted, rtol=1e-6, atol=1e-6)
    if not REAL:  # a view whose strides are not those of the whole: torch has none that is negative
        written()
        got = exe.run({"a": a.numpy()[::-1], "b": a.numpy()})["y"]
        np.testing.assert_allclose(got, A[::-1] + 2 * A, rtol=1e-6)


def test_an_output_of_the_call_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a model in parts: the first one writes it again before the last one reads it."""
    import torch

    nodes = [node("MatMul", "a", "w", "y"), node("MatMul", "a", "q", "r"),
             node("Softmax", "r", "p"), node("Unique", "p", "u", sorted=0),
             node("Size", "u", "n"), node("Cast", "n", "f", to=F), node("Mul", "b", "f", "c"),
             node("MatMul", "c", "v", "z")]  # fmt: skip
    w, v = drawn(64, 128, scale=0.1), np.abs(drawn(128, 64))
    inputs = {"a": (F, [64, 64]), "b": (F, [64, 128])}
    m = model(nodes, inputs, ["y", "n", "z"], {"w": w, "q": drawn(64, 64), "v": v})
    exe = superopt.compile(m, target="cuda")
    if not REAL:  # tensors of the processor stand for those on a GPU
        monkeypatch.setattr(gpu_inputs, "is_gpu_tensor", lambda x: isinstance(x, torch.Tensor))
    assert len(exe.variant({}).steps) > 1
    first, second, other = drawn(64, 64, of="1"), drawn(64, 64, of="2"), drawn(64, 128)
    a, b, c = (torch.from_numpy(x).to(exe.device.torch_device) for x in (first, second, other))
    before = exe.run({"a": a, "b": c})["y"]
    np.testing.assert_allclose(to_array(before), first @ w, rtol=1e-3, atol=1e-3)
    got = exe.run({"a": b, "b": before})
    np.testing.assert_allclose(to_array(got["y"]), second @ w, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(
        to_array(got["z"]), first @ w * to_array(got["n"]) @ v, rtol=1e-3, atol=10
    )


class Standing(fake_cuda.Device):
    """A driver that says which event ends a run, or is awaited, on which stream."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[tuple[str, int, int]] = []

    def cuEventRecord(self, event: int, stream: int) -> None:
        self.ends.append(("ends", event, stream))

    def cuStreamWaitEvent(self, stream: int, event: int, flags: int) -> None:
        self.ends.append(("awaited", event, stream))


@pytest.mark.skipif(REAL, reason="streams and events stand for a device's")
def test_a_call_on_another_stream_waits_for_all_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of which one may read what another one writes again."""
    nodes = [node("MatMul", "a", "w", "y"), node("MatMul", "y", "q", "r"),
             node("Softmax", "r", "p"), node("Unique", "p", "u", sorted=0), node("Size", "u", "n"),
             node("Cast", "n", "f", to=F), node("Mul", "y", "f", "c"),
             node("MatMul", "c", "v", "d"), node("Softmax", "d", "e"),
             node("MatMul", "e", "w", "z")]  # fmt: skip
    known = {"w": drawn(64, 128), "q": drawn(128, 64), "v": drawn(128, 64)}
    m = model(nodes, {"a": (F, [64, 64])}, ["n", "z"], known)
    exe = superopt.compile(m, target="cuda")
    parts = exe.variant({}).kernel_steps
    assert len(parts) == 2
    d = fake_cuda.driver(device := Standing())
    gpu, events = compiler.TorchStreamCuda(d, driver.Gpu("a GPU", (9, 0), 0)), []
    for p in parts:
        with gpu.activate():
            p.gpu_program.end_event, p.gpu_program.last_stream = gpu.Event(), 1
        events.append(p.gpu_program.end_event.handle)
    for stream, waits in ((1, []), (2, events), (2, []), (1, events)):
        device.ends.clear()
        monkeypatch.setattr(compiler, "torch_stream", lambda number, stream=stream: stream)
        with gpu.activate():  # as by torch's launch of a graph
            exe.run({"a": drawn(64, 64)})
        first = device.ends.index(("ends", events[0], stream))
        assert {e for what, e, s in device.ends[:first] if what == "awaited"} == {*waits}


def test_inputs_that_are_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are as they were before the call, and nobody else's."""
    import torch

    m = model([node("Add", "a", "b", "y")], {n: (F, [6, 4]) for n in "ab"}, ["y", "a", "b"], {})
    m.graph.initializer.append(onnx.numpy_helper.from_array(B, "b"))
    exe = superopt.compile(m, target="cuda")
    held = exe.buffers()
    if not REAL:  # tensors of the processor stand for those on a GPU
        monkeypatch.setattr(gpu_inputs, "is_gpu_tensor", lambda x: isinstance(x, torch.Tensor))
    a, b = (torch.from_numpy(x).to(exe.device.torch_device) for x in (A, B))

    def gives(x: Any, feeds: dict[str, Any]) -> dict[str, Any]:
        got = exe.run(feeds)
        for name, wanted in (("y", x + B), ("a", x), ("b", B)):
            np.testing.assert_allclose(to_array(got[name]), wanted, rtol=1e-6)
        return got

    before = gives(A, {"a": a, "b": b})["y"]
    gives(A + B, {"a": before, "b": b})
    held["b"].copy_(a)
    gives(A, {"a": held["b"], "b": b})
    for _ in range(2):
        got = gives(A, {"a": a})
        for x in got.values():
            x *= 10
    gives(A, {"a": a, "b": b})


def test_places() -> None:
    held = WrittenRanges.from_ranges([(100, 8), (40, 10), (60, 0), (50, 4)])
    assert [at for at in range(120) if held.contains(at)] == [*range(40, 54), *range(100, 108)]
    assert not WrittenRanges.from_ranges([]).contains(0)
    x = np.arange(12.0).reshape(3, 4)
    own = x.__array_interface__["data"][0]
    some = WrittenRanges.from_ranges([(own, x.nbytes)])
    other, part, sequence = np.zeros(3), x[1:], [x]
    kept = some.copy_aliased([x, other, sequence], [own, 0, 0])
    assert all(a is b for a, b in zip(kept, [x, other, sequence], strict=True))
    for moved in (*some.copy_aliased([x, part]), *some.copy_aliased([x.T, part], [own, own])):
        assert not np.shares_memory(moved, x)
