"""Products by cuBLAS with memory of the program's own: how it is asked, of a stand-in that does
what BLAS says; and on a GPU, that nobody else's is written."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

import superopt
from superopt.kernels.runtime.loaded_image import DeviceProgram
from superopt.kernels.vendor import cublas
from tests.support.compilation.cache import written
from tests.support.compilation.models import F, model, reference
from tests.support.gpu.compilation import UNITS, feeds, near
from tests.support.gpu.device import REAL, cached_programs
from tests.support.gpu.models import drawn, node
from tests.support.gpu.vendor import libraries, taken

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("interpreted")]
HANDLE, STREAM = 77, 78
# cudaDataType_t; and what sums of it are of, cublasComputeType_t.
TYPES = {0: np.float32, 1: np.float64, 2: np.float16, 14: ml_dtypes.bfloat16}
SUMS = {0: 68, 1: 70, 2: 68, 14: 68}


class Standing:
    """In place of cuBLAS. asked: for what, in order."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def cublasSetStream_v2(self, handle: ctypes.c_void_p, stream: ctypes.c_void_p) -> int:
        self.asked.append((handle.value, stream.value))
        return 0

    def cublasSetMathMode(self, handle: ctypes.c_void_p, way: int) -> int:
        self.asked.append((handle.value, way))
        return 0

    def cublasSetWorkspace_v2(
        self, handle: ctypes.c_void_p, at: ctypes.c_void_p, size: ctypes.c_size_t
    ) -> int:
        self.asked.append((handle.value, at.value, size.value))
        return 0

    def cublasGemmEx(self, handle: ctypes.c_void_p, *given: Any) -> int:
        """C = alpha A B + beta C; columns are side by side, `ld` elements apart."""
        ta, tb, m, n, k, alpha, a, ka, lda, b, kb, ldb, beta, c, kc, ldc, sums, way = given
        assert (handle.value, ta, tb, sums, way) == (HANDLE, 0, 0, SUMS[ka], -1)
        assert ka == kb == kc

        def matrix(at: ctypes.c_void_p, kind: int, high: int, wide: int, ld: int) -> np.ndarray:
            size = ld * wide * np.dtype(TYPES[kind]).itemsize
            held = (ctypes.c_uint8 * size).from_address(at.value or 0)
            return np.frombuffer(held, TYPES[kind]).reshape(wide, ld)[:, :high].T

        x, y = matrix(a, ka, m, k, lda), matrix(b, kb, k, n, ldb)
        alpha_, beta_ = alpha._obj.value, beta._obj.value
        to = matrix(c, kc, m, n, ldc)
        wide = np.float64 if sums == 70 else np.float32
        assert isinstance(alpha._obj, ctypes.c_double if sums == 70 else ctypes.c_float)
        to[...] = alpha_ * (x.astype(wide) @ y.astype(wide)) + beta_ * to.astype(wide)
        return 0


def standing(monkeypatch: pytest.MonkeyPatch, there: Any) -> None:
    import torch

    now = SimpleNamespace(cuda_stream=STREAM)
    monkeypatch.setattr(cublas, "_library", lambda: there)
    monkeypatch.setattr(torch.cuda, "current_blas_handle", lambda: HANDLE)
    monkeypatch.setattr(torch.cuda, "default_stream", lambda: None)
    monkeypatch.setattr(torch.cuda, "stream", lambda s: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: now)


@pytest.mark.parametrize(("kind", "tf32", "way"), [
    ("float32", False, 0), ("float32", True, 3), ("float16", False, 16), ("float16", True, 16),
    ("bfloat16", False, 16), ("float64", False, 0), ("float64", True, 0),
])  # fmt: skip
def test_as_blas_says(kind: str, tf32: bool, way: int, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    there = Standing()
    standing(monkeypatch, there)
    a, b = (torch.randn(s).to(getattr(torch, kind)) for s in ((3, 5), (5, 4)))
    out, held = torch.zeros(3, 4, dtype=a.dtype), torch.empty(64, dtype=torch.uint8)
    cublas.multiply(a, b, out, tf32, held)
    torch.testing.assert_close(out, a @ b)
    # In this order: with another stream it has its own memory again.
    assert there.asked == [(HANDLE, STREAM), (HANDLE, held.data_ptr(), 64), (HANDLE, way)]


@pytest.mark.parametrize(("code", "why"), [(7, r"cuBLAS status 7"), (3, "out of memory")])
def test_what_it_refuses(code: int, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    there: Any = Standing()
    there.cublasGemmEx = lambda *given: code
    standing(monkeypatch, there)
    some = [torch.zeros(2, 2) for _ in range(3)]
    held = torch.empty(8, dtype=torch.uint8)
    with pytest.raises(RuntimeError, match=f"cublasGemmEx: {why}"):
        cublas.multiply(*some, False, held)
    long = torch.zeros(1).expand(2**31, 1)
    with pytest.raises(RuntimeError, match="2147483648 x 1 x 2: cuBLAS takes dimensions up"):
        cublas.multiply(long, torch.zeros(1, 2), long, False, held)


def tall() -> onnx.ModelProto:
    """Few rows and columns of many terms, of which cuBLAS keeps sums of parts in memory; what is
    read is a kernel's, so that it is of the precision's type."""
    nodes = [node("MatMul", "x", "v", "h"), node("MatMul", "h", "w", "y")]
    known = {"v": drawn(32, 16384, scale=0.2), "w": drawn(16384, 64, scale=2.0**-7)}
    return model(nodes, {"x": (F, [64, 32])}, ["y"], known)


def cleared() -> Callable[[], bool]:
    """What torch kept for cuBLAS is others'; is that still as these left it?"""
    import torch

    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    there = [torch.full((1 << 24,), 7, dtype=torch.uint8, device="cuda") for _ in range(32)]
    return lambda: all(bool((x == 7).all()) for x in there)


@pytest.mark.skipif(not REAL, reason="the interpreter has no cuBLAS")
@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("precision", ["fp16", "tf32", "fp32"])
def test_it_writes_what_is_its_own(
    precision: str, kept: bool, tmp_path: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch.compile clears what torch keeps for cuBLAS, before it records graphs of its own."""
    taken(monkeypatch)
    monkeypatch.setitem(UNITS, "fp32", 1e-5)
    path = written(tmp_path / "m.onnx", tall())
    exe = superopt.compile(path, target="cuda", precision=precision)
    assert libraries(exe)[-1] == "mm 64 16384 64"
    if kept:
        exe = superopt.compile(path, target="cuda", precision=precision)
        assert isinstance(cached_programs(exe)[0].loaded, DeviceProgram)
    before = exe.run(feeds(tall()))
    near(before, reference(tall(), feeds(tall())), precision)
    as_left = cleared()
    for _ in range(3):
        np.testing.assert_array_equal(exe.run(feeds(tall()))["y"], before["y"])
    assert as_left()
