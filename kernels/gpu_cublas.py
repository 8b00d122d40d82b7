"""Products of matrices by cuBLAS, with torch's handle and memory that is the program's own.

A recorded graph goes on using the memory that cuBLAS was given while it was recorded. Torch's own
is the stream's: torch.compile's graphs clear it, whoever else recorded with it, as does the end of
another graph of that stream (from torch 2.11 on); then it is somebody else's, and the graph writes
into that. So each program gives its own. Of halves and tf32 results are `torch.mm`'s, to the bit.

Source: NVIDIA's cuBLAS documentation, cublasGemmEx and cublasSetWorkspace.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

NAME = "mm"  # of Kernel.library: mm ROWS TERMS COLUMNS
HOPPER = (9, 0)  # from which capability on cuBLAS wants more
MORE, LESS = 32 << 20, 8 << 20  # bytes that it wants
MOST = (1 << 31) - 1  # of a side
# By torch's name of elements: cudaDataType_t; what sums are of, cublasComputeType_t (32F, 64F), and
# what they are multiplied with.
_TYPES = {
    "float16": (2, 68, ctypes.c_float), "bfloat16": (14, 68, ctypes.c_float),
    "float32": (0, 68, ctypes.c_float), "float64": (1, 70, ctypes.c_double),
}  # fmt: skip
# cublasMath_t: sums of 16 bits are of float32; float32 is rounded to tf32; nothing is.
_HALVES, _TF32, _EXACT = 16, 3, 0
_AS_IT_IS, _ANY = 0, -1  # CUBLAS_OP_N, CUBLAS_GEMM_DEFAULT
_NO_MEMORY = 3  # CUBLAS_STATUS_ALLOC_FAILED


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
    if max(rows, terms, columns) > MOST:
        raise RuntimeError(f"{rows} x {terms} x {columns}: cuBLAS takes sides of {MOST} at most")
    type_, sums, number = _TYPES[kind := str(a.dtype).removeprefix("torch.")]
    way = _HALVES if a.dtype.itemsize == 2 else _TF32 if tf32 and kind == "float32" else _EXACT
    one, none = number(1.0), number(0.0)
    # For each stream on which it is asked for, torch keeps memory for the handle; what is said of
    # it here, torch says anew whenever it takes it.
    with cuda.stream(cuda.default_stream()):
        handle = ctypes.c_void_p(cuda.current_blas_handle())
    _asked("cublasSetStream_v2", handle, ctypes.c_void_p(cuda.current_stream().cuda_stream))
    _asked("cublasSetWorkspace_v2", handle, _at(held), ctypes.c_size_t(held.numel()))
    _asked("cublasSetMathMode", handle, way)
    # Columns are side by side to cuBLAS: it computes the result turned, of both operands turned.
    _asked(
        "cublasGemmEx", handle, _AS_IT_IS, _AS_IT_IS, columns, rows, terms, ctypes.byref(one),
        _at(b), type_, max(columns, 1), _at(a), type_, max(terms, 1), ctypes.byref(none),
        _at(out), type_, max(columns, 1), sums, _ANY,
    )  # fmt: skip


def _at(x: Any) -> ctypes.c_void_p:
    return ctypes.c_void_p(x.data_ptr())


def _asked(name: str, *given: Any) -> None:
    if code := getattr(_library(), name)(*given):
        why = "out of memory" if code == _NO_MEMORY else f"cuBLAS says no ({code})"
        raise RuntimeError(f"{name}: {why}")


@cache
def _library() -> Any:
    """The one that torch has loaded, which is found through torch's own."""
    import torch

    return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cuda.so"))
