"""Products of matrices by cuBLAS, with torch's handle and memory of our own.

A recorded graph goes on using the memory that cuBLAS was given while it was recorded. Torch's own
is the stream's: torch.compile's graphs clear it, whoever else recorded with it, as does the end of
another graph of that stream (from torch 2.11 on); then it is somebody else's, and the graph writes
into that. So each program gives its own. It is asked as `torch.mm` asks (cublasGemmEx, NVIDIA's
cuBLAS documentation, 2.8.12), so that the kernels are the same.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

HOPPER = (9, 0)  # from which capability on cuBLAS wants more
MORE, LESS = 32 << 20, 8 << 20  # bytes that it wants (cuBLAS documentation, cublasSetWorkspace)
_TYPES = {"float32": 0, "float16": 2, "bfloat16": 14}  # cudaDataType_t of library_types.h
# cublasMath_t: sums of 16 bits are of float32; of tf32 on tensor cores; of float32.
_HALVES, _TF32, _EXACT = 16, 3, 0
_AS_IT_IS, _SUMS, _ANY = 0, 68, -1  # CUBLAS_OP_N, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT


def workspace(device: str) -> Any:
    """Memory for the products of a program, of those on one stream; on the current GPU."""
    import torch

    size = MORE if torch.cuda.get_device_capability() >= HOPPER else LESS
    return torch.empty(size, dtype=torch.uint8, device=device)


def multiply(a: Any, b: Any, out: Any, tf32: bool, held: Any) -> None:
    """out = a @ b in torch's current stream. a, b, out: contiguous matrices of torch on one GPU, of
    one type; tf32: may float32 be rounded to it? held: see `workspace`.

    Raises RuntimeError where cuBLAS refuses."""
    import torch

    cuda: Any = torch.cuda  # whose functions have no types
    (rows, terms), columns = a.shape, b.shape[1]
    kind = str(a.dtype).removeprefix("torch.")
    way = _HALVES if kind != "float32" else _TF32 if tf32 else _EXACT
    type_ = _TYPES[kind]
    one, none = ctypes.c_float(1.0), ctypes.c_float(0.0)
    handle = ctypes.c_void_p(cuda.current_blas_handle())  # of the stream; as it is by default
    _asked("cublasSetMathMode", handle, way)
    _asked("cublasSetWorkspace_v2", handle, _at(held), ctypes.c_size_t(held.numel()))
    # Columns are side by side to cuBLAS: it computes the result turned, of both operands turned.
    _asked(
        "cublasGemmEx", handle, _AS_IT_IS, _AS_IT_IS, columns, rows, terms, ctypes.byref(one),
        _at(b), type_, max(columns, 1), _at(a), type_, max(terms, 1), ctypes.byref(none),
        _at(out), type_, max(columns, 1), _SUMS, _ANY,
    )  # fmt: skip


def _at(x: Any) -> ctypes.c_void_p:
    return ctypes.c_void_p(x.data_ptr())


def _asked(name: str, *given: Any) -> None:
    if code := getattr(_library(), name)(*given):
        raise RuntimeError(f"{name}: cuBLAS says no ({code})")


@cache
def _library() -> Any:
    """The one that torch has loaded, which is found through torch's own."""
    import torch

    return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cuda.so"))
