"""Operands of integer products for tests, and what a processor needs to compute these."""

from __future__ import annotations

import numpy as np
import onnx

from superopt.kernels.processor import AMX_INT8
from superopt.kernels.runtime.amx import INTEGER_FEATURES, request_amx
from superopt.kernels.runtime.engine import host

LEVELS = {64: "x86-64-v4", 32: "x86-64-v3", 16: "x86-64"}  # by the bytes of a vector


def lacks(instructions: str, width: int) -> str:
    """Why this processor cannot run the instructions; empty if it can."""
    there = {f[1:] for f in host().features.split(",") if f.startswith("+")}
    needed = (*INTEGER_FEATURES[instructions], {64: "avx512bw", 32: "avx2", 16: "sse2"}[width])
    missing = [f for f in needed if f not in there]
    if not missing and instructions == AMX_INT8 and not request_amx():
        return "the system does not permit AMX"
    return f"this processor lacks {', '.join(missing)}" if missing else ""


def drawn(kind: int, shape: list[int], seed: object) -> np.ndarray:
    """Integers of a whole range, its ends often; positive floats."""
    rng = np.random.default_rng([*str(seed).encode()])
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind)
    if dtype == np.float32:
        return (0.01 + rng.random(shape)).astype(dtype)
    ends = np.iinfo(dtype)
    if dtype in (np.int32, np.int64):
        return rng.integers(-1000, 1000, shape).astype(dtype)
    some = rng.integers(ends.min, ends.max + 1, shape)
    return np.where(rng.random(shape) < 0.3, rng.choice([ends.min, ends.max], shape), some).astype(
        dtype
    )
