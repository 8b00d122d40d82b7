"""Matrix products by cuBLAS, with torch's handle and a workspace of the program's own.

A captured graph keeps using the workspace that cuBLAS had at capture. torch's belongs to the
stream: torch.compile's graphs clear it, as does the end of another graph of that stream (from torch
2.11 on); then it is reused, and the graph writes into other tensors. So each program brings its
own. Results of 16 bits and tf32 are bitwise equal to `torch.mm`.

Source: NVIDIA's cuBLAS documentation, cublasGemmEx and cublasSetWorkspace.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

CALL_NAME = "mm"  # of Kernel.library: mm ROWS TERMS COLUMNS
HOPPER_CAPABILITY = (9, 0)  # compute capability from which cuBLAS needs a larger workspace
HOPPER_WORKSPACE_BYTES, WORKSPACE_BYTES = 32 << 20, 8 << 20  # bytes, as cuBLAS recommends
MAX_DIMENSION = (1 << 31) - 1  # of a matrix side
# By torch's dtype: cudaDataType_t; cublasComputeType_t (32F, 64F); ctypes type of alpha and beta.
_TYPES = {
    "float16": (2, 68, ctypes.c_float), "bfloat16": (14, 68, ctypes.c_float),
    "float32": (0, 68, ctypes.c_float), "float64": (1, 70, ctypes.c_double),
}  # fmt: skip
# cublasMath_t: no reduced-precision sums for 16 bits; tf32 for fp32; default.
_MATH_16_BIT, _MATH_TF32, _MATH_DEFAULT = 16, 3, 0
_OP_N, _ALGORITHM_DEFAULT = 0, -1  # CUBLAS_OP_N, CUBLAS_GEMM_DEFAULT
_STATUS_ALLOC_FAILED = 3  # CUBLAS_STATUS_ALLOC_FAILED


def allocate_workspace(device: str) -> Any:
    """Allocate the workspace of a program's products on one stream of the current GPU."""
    import torch

    size = (
        HOPPER_WORKSPACE_BYTES
        if torch.cuda.get_device_capability() >= HOPPER_CAPABILITY
        else WORKSPACE_BYTES
    )
    return torch.empty(size, dtype=torch.uint8, device=device)


def multiply(a: Any, b: Any, out: Any, tf32: bool, workspace: Any) -> None:
    """Compute out = a @ b in torch's current stream. a, b, out: contiguous torch matrices on one
    GPU, of one dtype; tf32: fp32 products may use tf32; workspace: see `allocate_workspace`.

    Raises RuntimeError if cuBLAS fails.
    """
    import torch

    cuda: Any = torch.cuda  # whose functions have no types
    (rows, terms), columns = a.shape, b.shape[1]
    if max(rows, terms, columns) > MAX_DIMENSION:
        raise RuntimeError(
            f"{rows} x {terms} x {columns}: cuBLAS takes dimensions up to {MAX_DIMENSION}"
        )
    type_, sums, number = _TYPES[kind := str(a.dtype).removeprefix("torch.")]
    way = (
        _MATH_16_BIT
        if a.dtype.itemsize == 2
        else _MATH_TF32
        if tf32 and kind == "float32"
        else _MATH_DEFAULT
    )
    one, none = number(1.0), number(0.0)
    # torch keeps a workspace for the handle per stream on which it is requested; torch sets stream
    # and workspace again whenever it takes the handle
    with cuda.stream(cuda.default_stream()):
        handle = ctypes.c_void_p(cuda.current_blas_handle())
    _call("cublasSetStream_v2", handle, ctypes.c_void_p(cuda.current_stream().cuda_stream))
    _call("cublasSetWorkspace_v2", handle, _pointer(workspace), ctypes.c_size_t(workspace.numel()))
    _call("cublasSetMathMode", handle, way)
    # cuBLAS is column-major: it computes the transposed result from both transposed operands
    _call(
        "cublasGemmEx", handle, _OP_N, _OP_N, columns, rows, terms, ctypes.byref(one),
        _pointer(b), type_, max(columns, 1), _pointer(a), type_, max(terms, 1), ctypes.byref(none),
        _pointer(out), type_, max(columns, 1), sums, _ALGORITHM_DEFAULT,
    )  # fmt: skip


def _pointer(x: Any) -> ctypes.c_void_p:
    return ctypes.c_void_p(x.data_ptr())


def _call(name: str, *args: Any) -> None:
    if code := getattr(_library(), name)(*args):
        why = "out of memory" if code == _STATUS_ALLOC_FAILED else f"cuBLAS status {code}"
        raise RuntimeError(f"{name}: {why}")


@cache
def _library() -> Any:
    """Return the cuBLAS that torch has loaded, found through torch's own library."""
    import torch

    return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cuda.so"))
