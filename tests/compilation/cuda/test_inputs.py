"""On a GPU: what is given and got that kernels have no tensors of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper

import superopt
from superopt.compilation.cuda import load_compiler
from superopt.errors import UsageError
from superopt.kernels.runtime.gpu_device import KERNEL_DTYPES, from_dlpack, to_array, to_device
from superopt.kernels.triton.functions import TRITON_TYPES
from superopt.onnx_io.read.source import read_model
from tests.support.compilation.models import model
from tests.support.gpu.device import REAL, cached_programs
from tests.support.gpu.models import drawn, node

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("interpreted")]
F = TensorProto.FLOAT


def test_a_sequence_beside_a_tensor() -> None:
    """The node that takes it runs in onnxruntime, the others are kernels."""
    nodes = [
        node("Softmax", "x", "a", axis=-1), node("SequenceAt", "s", "n", "b"),
        node("Add", "a", "b", "y"),
    ]  # fmt: skip
    some = helper.make_tensor_sequence_value_info("s", F, [4, 70])
    x = helper.make_tensor_value_info("x", F, [4, 70])
    n = helper.make_tensor("n", TensorProto.INT64, [], [1])
    g = helper.make_graph(nodes, "g", [x, some], [helper.make_tensor_value_info("y", F, None)], [n])
    m = helper.make_model(g, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    given = drawn(4, 70), [drawn(4, 70), drawn(4, 70) + 1]
    got = load_compiler.compile_model(read_model(m)).run({"x": given[0], "s": given[1]})
    e = np.exp(given[0].astype(np.float64))
    np.testing.assert_allclose(got["y"], e / e.sum(-1, keepdims=True) + given[1][1], rtol=1e-5)


class Elsewhere:
    """An array that another library has on a GPU."""

    def __init__(self, kind: int) -> None:
        self.kind = kind

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.kind, 0


def test_arrays_of_other_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those on a GPU are torch's then, without a copy."""
    import torch

    monkeypatch.setattr(torch, "from_dlpack", lambda x: ("torch's", x))
    there, here = Elsewhere(2), Elsewhere(1)
    assert from_dlpack(there) == ("torch's", there)
    for x in (here, np.zeros(2), torch.zeros(2), [1.0], None):
        assert from_dlpack(x) is x

    def refused(x: object) -> None:
        raise BufferError("a type that torch has not")

    monkeypatch.setattr(torch, "from_dlpack", refused)
    assert from_dlpack(there) is there


@pytest.mark.parametrize("again", [False, True])
def test_inputs_that_are_written_where_they_are_read(
    again: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a program that was compiled, and by one that was found."""
    monkeypatch.setenv("SUPEROPT_CACHE", str(tmp_path))
    known = {"w": drawn(6, 4)}
    nodes = [node("MatMul", "x", "w", "a"), node("Add", "a", "z", "y")]
    m = model(nodes, {"x": (TensorProto.FLOAT, [3, 6]), "z": (F, [3, 4])}, ["y"], known)
    path = tmp_path / "m.onnx"
    path.write_bytes(m.SerializeToString())
    for _ in range(1 + again):
        exe = superopt.compile(path, target="cuda")
        held = exe.buffers()
    assert bool(cached_programs(exe)) == again
    assert list(held) == ["x", "z"]
    for scale in (1, 3):
        x, z = drawn(3, 6) * scale, drawn(3, 4, of="z") * scale
        held["x"].copy_(to_device(x, exe.device.torch_device))
        held["z"].copy_(to_device(z, exe.device.torch_device))
        wanted = x.astype(np.float64) @ known["w"] + z
        got = exe.run(held if REAL else {n: v.numpy() for n, v in held.items()})["y"]
        np.testing.assert_allclose(to_array(got) if REAL else got, wanted, rtol=1e-4, atol=1e-4)
    with pytest.raises(UsageError, match="batch"):
        exe.buffers({"batch": 2})


KEPT = [["a", "b"], None, np.array(["a"], object), np.zeros(2, ml_dtypes.float8_e4m3fn)]
MOVED = [np.float32, np.float16, ml_dtypes.bfloat16, np.bool_, np.uint16, np.int64]


@pytest.mark.parametrize("x", KEPT, ids=lambda x: f"{type(x).__name__} {getattr(x, 'dtype', '')}")
def test_what_is_no_tensor_there_stays(x: Any) -> None:
    assert to_device(x, "cuda" if REAL else "cpu") is x


@pytest.mark.parametrize("kind", MOVED)
def test_what_is_a_tensor_there(kind: Any) -> None:
    for x in (np.arange(6).reshape(2, 3).astype(kind), np.zeros((0, 3), kind), np.array(1, kind)):
        got = to_array(to_device(x, "cuda" if REAL else "cpu"))
        assert (got.dtype, got.shape) == (x.dtype, x.shape)
        np.testing.assert_array_equal(got, x)


@pytest.mark.parametrize("kind", [TensorProto.INT64, TensorProto.UINT8, TensorProto.BOOL, F])
def test_casts_to_bfloat16_and_back(kind: int) -> None:
    """By way of float32: the interpreter keeps one as the integer of its bits."""
    nodes = [node("Cast", "x", "y", to=TensorProto.BFLOAT16), node("Cast", "y", "z", to=kind)]
    exe = load_compiler.compile_model(read_model(model(nodes, {"x": (kind, [2, 4])}, ["y", "z"])))
    x = np.arange(8).reshape(2, 4).astype(helper.tensor_dtype_to_np_dtype(kind))
    got = exe.run({"x": x})
    np.testing.assert_array_equal(got["y"].astype(np.float32), x.astype(np.float32))
    np.testing.assert_array_equal(got["z"], x)


def test_tensors_are_of_the_types_of_kernels() -> None:
    assert {
        "bool" if x == "tl.int1" else x.removeprefix("tl.") for x in TRITON_TYPES.values()
    } == KERNEL_DTYPES
