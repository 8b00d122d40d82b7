"""The device on which a GPU's kernels run, and tensors there. All of torch that callers need."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import numpy as np

EARLY = (9, 0)  # compute capability


def device() -> str:
    """ "cuda"; or "cpu", where TRITON_INTERPRET=1 says that kernels run in Triton's interpreter.

    Raises RuntimeError, with what is missing.
    """
    try:
        import torch
        import triton  # noqa: F401
    except ImportError as e:
        raise RuntimeError(f"{e.name} is not installed") from None
    if os.environ.get("TRITON_INTERPRET") == "1":
        return "cpu"
    if not torch.cuda.is_available():
        raise RuntimeError("torch finds no CUDA device here")
    return "cuda"


def overlaps(device: str) -> bool:
    """Can a launch's programs begin before those of the one before have ended, and wait for them?
    (CUDA's programmatic dependent launch, from sm_90 on.)"""
    import torch

    return device == "cuda" and torch.cuda.get_device_capability() >= EARLY


def shared_first(compiled: Any) -> None:
    """Have a kernel that Triton has compiled prefer as much shared memory as there is, where its
    version tells how (CUfunction_attribute 9 of the driver's cuFuncSetAttribute, in percent)."""
    load = getattr(compiled, "_init_handles", None)
    if load is None:
        return
    load()
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        driver.cuFuncSetAttribute(ctypes.c_void_p(compiled.function), 9, 100)
    except (OSError, AttributeError, TypeError):  # it is no more than a wish
        return


def on_device(x: object) -> bool:
    """Is it a tensor of torch on a GPU?"""
    return type(x).__module__.startswith("torch") and bool(getattr(x, "is_cuda", False))


def put(to: Any, x: Any) -> None:
    """The numbers of an array, or of a tensor on the device, into one there."""
    import torch

    to.copy_(x if isinstance(x, torch.Tensor) else torch.from_numpy(np.ascontiguousarray(x)))


def array(x: Any) -> np.ndarray:
    """A tensor on the device as an array."""
    out: np.ndarray = x.cpu().numpy()
    return out
