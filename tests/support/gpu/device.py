"""Whether tests of a GPU's kernels run there, or in Triton's interpreter on the processor.

Where the environment has SUPEROPT_TEST_GPU=1 they are the same tests, on a device: `pytest -m gpu`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

REAL = os.environ.get("SUPEROPT_TEST_GPU") == "1"


def cached_programs(exe: Any) -> list[Any]:
    """Return the programs of an executable that came from the disk cache."""
    return [v.only_step for v in exe.variants.values() if v.options is not None]


def choose(patch: pytest.MonkeyPatch) -> None:
    """Have Triton interpret kernels, which it decides when it is imported, or not; skip the test
    where the extra is not installed."""
    if REAL:
        patch.delenv("TRITON_INTERPRET", raising=False)
    else:
        patch.setenv("TRITON_INTERPRET", "1")
    for name in ("torch", "triton"):
        pytest.importorskip(name, reason=f"the extra gpu is not installed: no {name}")
    if not REAL:
        speed_up_interpreter(patch)


def speed_up_interpreter(patch: pytest.MonkeyPatch) -> None:
    """Have Triton's interpreter do the same in a fraction of its time.

    It computes integer sums and products a second time, in 64 bits, for an overflow check that it
    then skips, as its option `debug` is off. And it calls a reduction's function for each element.
    """
    from triton.runtime import interpreter

    builder = interpreter.interpreter_builder
    patch.setattr(builder, "options", replace(builder.options, sanitize_overflow=False))
    patch.setattr(interpreter.ReduceOps, "generic_reduce", reduce_slices)


def reduce_slices(reduction: Any, operands: Sequence[Any]) -> list[Any]:
    """Return what the interpreter's generic_reduce does, for an axis that is given and not kept.

    The function combines the slices along the axis, in their order: each is one of its calls.
    """
    assert reduction.axis is not None
    assert not reduction.keep_dims
    dtypes = [x.dtype for x in operands]

    def tensors(arrays: Iterable[np.ndarray]) -> list[Any]:
        return [reduction.to_tensor(a.reshape(-1), t) for a, t in zip(arrays, dtypes, strict=True)]

    slices = [np.moveaxis(x.handle.data, reduction.axis, 0) for x in operands]
    combined, *rest = map(tensors, zip(*slices, strict=True))
    for more in rest:
        result = reduction.combine_fn.fn(*combined, *more)
        results = result if isinstance(result, tuple) else (result,)
        combined = tensors(x.handle.data for x in results)
    shape = slices[0].shape[1:]
    return [
        reduction.to_tensor(x.handle.data.reshape(shape), t)
        for x, t in zip(combined, dtypes, strict=True)
    ]
