"""The device of GPU kernels, and tensors on it. All of torch that callers need."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

from superopt.kernels.cuda.driver import CAPTURE_LOCK
from superopt.kernels.vendor import cublas

DEPENDENT_LAUNCH_CAPABILITY = (9, 0)  # compute capability with programmatic dependent launch
PEAK_MATRIX_SIDE, PEAK_COPY_BYTES = 4096, 1 << 28  # of square matrices; bytes
PEAK_REPEATS = 4  # runs of each
NO_CONTEXT = nullcontext()
DLPACK_CUDA = 2  # kDLCUDA of dlpack.h
# dtypes of kernels: those of triton.functions.TRITON_TYPES, which a loaded program does not import
KERNEL_DTYPES = frozenset((
    "bool", "float16", "bfloat16", "float32", "float64",
    *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)),
))  # fmt: skip


def execution_device() -> str:
    """Return "cuda"; or "cpu" if TRITON_INTERPRET=1 selects Triton's interpreter.

    Raises RuntimeError, with what is missing.
    """
    try:
        import torch
        import triton
    except ModuleNotFoundError as e:
        raise RuntimeError(f"{e.name} is not installed") from None
    except (ImportError, OSError) as e:  # a shared library is missing
        raise RuntimeError(f"torch or triton does not load: {e}") from None
    if os.environ.get("TRITON_INTERPRET") == "1":
        if isinstance(triton.language.cdiv, triton.JITFunction):
            raise RuntimeError("TRITON_INTERPRET=1 was set after triton had been imported")
        return "cpu"
    if torch.version.cuda is None:
        raise RuntimeError(f"torch {torch.__version__} is built without CUDA")
    if not torch.cuda.is_available():
        raise RuntimeError("torch finds no CUDA device here")
    return "cuda"


def current_gpu_number(device: str) -> int | None:
    """Return torch's current GPU number in this thread; None in the interpreter or without a
    GPU."""
    import torch

    there = device == "cuda" and torch.cuda.is_available()
    return int(torch.cuda.current_device()) if there else None


def use_gpu(number: int | None) -> AbstractContextManager[object]:
    """Return a context in which this GPU is torch's current one, if torch uses one already; None:
    no change."""
    torch = sys.modules.get("torch")
    if number is None or torch is None or not torch.cuda.is_initialized():
        return NO_CONTEXT
    if torch.cuda.current_device() == number:
        return NO_CONTEXT
    there: AbstractContextManager[object] = torch.cuda.device(number)
    return there


def device_name(device: str) -> str:
    """Return the GPU's name."""
    if device != "cuda":
        return "Triton's interpreter"
    import torch

    return str(torch.cuda.get_device_name())


@dataclass(frozen=True, slots=True)
class GpuPeak:
    """The peak rates of a GPU: operations per second (an FMA is two), and bytes read plus written
    per second."""

    flops: float
    bandwidth: float


def measure_gpu_peak(device: str, precision: str) -> GpuPeak:
    """Measure the peak rates of the current GPU with cuBLAS products of large matrices and torch's
    copy. precision: fp32, tf32, fp16 or bf16. Placeholder numbers in the interpreter."""
    number = current_gpu_number(device)
    return GpuPeak(1e9, 1e9) if number is None else _measured_peak(number, precision)


@cache
def _measured_peak(number: int, precision: str) -> GpuPeak:
    import torch

    kinds = {"fp16": torch.float16, "bf16": torch.bfloat16}
    kind = kinds.get(precision, torch.float32)
    where = torch.device("cuda", number)
    a, b = (
        fill_random(torch.empty(PEAK_MATRIX_SIDE, PEAK_MATRIX_SIDE, device=where, dtype=kind))
        for _ in range(2)
    )
    given = (
        a,
        b,
        torch.empty_like(a),
        precision == "tf32",
        cublas.allocate_workspace(f"cuda:{number}"),
    )
    flops = 2 * PEAK_MATRIX_SIDE**3 / _fastest_seconds(lambda: cublas.multiply(*given))
    x = torch.zeros(PEAK_COPY_BYTES // 4, device=where)
    y = torch.empty_like(x)
    return GpuPeak(flops, 2 * PEAK_COPY_BYTES / _fastest_seconds(lambda: y.copy_(x)))


def _fastest_seconds(run: Callable[[], object]) -> float:
    """Return the seconds of one of several runs in a row, launched ahead of the device."""
    import torch

    cuda: Any = torch.cuda  # whose classes have no types
    found = []
    for _ in range(6):
        begin, end = (cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(PEAK_REPEATS):
            run()
        end.record()
        end.synchronize()
        found.append(begin.elapsed_time(end) * 1e-3 / PEAK_REPEATS)
    return float(min(found[1:]))


def supports_dependent_launch(device: str) -> bool:
    """True if a launch may begin before the previous one has ended (CUDA's programmatic dependent
    launch, from sm_90 on)."""
    import torch

    return device == "cuda" and torch.cuda.get_device_capability() >= DEPENDENT_LAUNCH_CAPABILITY


def synchronize(device: str) -> None:
    """Wait until all work of the device is done."""
    import torch

    if device == "cuda":
        with CAPTURE_LOCK:
            torch.cuda.synchronize()


def empty_cache(device: str) -> None:
    """Return the memory that torch caches to the device."""
    import torch

    if device == "cuda":
        with CAPTURE_LOCK:
            torch.cuda.empty_cache()


def is_gpu_tensor(x: object) -> bool:
    """True if it is a torch tensor on a GPU."""
    return type(x).__module__.startswith("torch") and bool(getattr(x, "is_cuda", False))


def from_dlpack(x: Any) -> Any:
    """Convert another library's GPU array to a torch tensor without a copy; return anything else as
    it is."""
    where = getattr(x, "__dlpack_device__", None)
    if where is None or isinstance(x, np.ndarray) or type(x).__module__.startswith("torch"):
        return x
    try:
        if int(where()[0]) != DLPACK_CUDA:
            return x
        import torch

        library: Any = torch  # whose type stubs lack it
        return library.from_dlpack(x)
    except Exception:  # any, from libraries; callers that want an array report the error
        return x


def fill_random(x: Any) -> Any:
    """Fill a float tensor with normal numbers of a generator with a fixed seed; global seeds are
    unaffected."""
    import torch

    return x.normal_(generator=torch.Generator(x.device).manual_seed(0))


def copy_to_device(target: Any, x: Any) -> None:
    """Copy an array, or a tensor on the device, into a device tensor."""
    import torch

    if not isinstance(x, torch.Tensor):
        x = np.ascontiguousarray(x).reshape(np.shape(x))  # it makes a scalar 1-D
        short = x.dtype == ml_dtypes.bfloat16  # numpy has no bfloat16, torch has
        x = x if x.flags.writeable else x.copy()  # torch warns about read-only arrays
        x = torch.from_numpy(x.view(np.int16) if short else x)
        x = x.view(torch.bfloat16) if short else x
    # without detach, the autograd graph would stay alive
    target.copy_(x.detach() if x.requires_grad else x)


def to_array(x: Any) -> np.ndarray:
    """Return a device tensor as a numpy array."""
    import torch

    if x.dtype == torch.bfloat16:
        return to_array(x.view(torch.int16)).view(ml_dtypes.bfloat16)
    out: np.ndarray = x.cpu().numpy()
    return out if x.is_cuda else out.copy()  # in the interpreter it is the kernels' own memory


def to_device(x: Any, device: str) -> Any:
    """Return a numpy array as a tensor on the device; anything else, and dtypes without kernels
    (strings, sequences, float8), as it is."""
    import torch

    if not isinstance(x, (np.ndarray, np.generic)) or x.dtype.name not in KERNEL_DTYPES:
        return x
    out = torch.empty(x.shape, dtype=getattr(torch, x.dtype.name), device=device)
    copy_to_device(out, x)
    return out
