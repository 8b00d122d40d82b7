"""What tests/support/gpu/device.py replaces in Triton's interpreter computes the same results."""

import numpy as np
import pytest

from superopt.kernels.triton.module import define_functions
from tests.support.gpu.device import REAL, choose, reduce_pairs

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(REAL, reason="nothing is interpreted")]

SOURCE = """
import triton
import triton.language as tl
@triton.jit
def largest(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
@triton.jit
def last(a, b):
    return b
@triton.jit
def largest_and_where(a, i, b, j):
    first = a >= b
    return tl.where(first, a, b), tl.where(first, i, j)
"""


@pytest.mark.round_robin(4)
@pytest.mark.parametrize("kind", ["float32", "float16", "int8", "int64"])
@pytest.mark.parametrize("shape", [(8,), (8, 4), (4, 8, 2)])
@pytest.mark.parametrize("fn", ["largest", "last", "largest_and_where"])
def test_reductions(
    monkeypatch: pytest.MonkeyPatch, fn: str, shape: tuple[int, ...], kind: str
) -> None:
    """Associative functions get their operands in the interpreter's order: `last` depends on it."""
    with pytest.MonkeyPatch.context() as patch:
        choose(patch)
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # and no more: the interpreter is as it was
    import triton.language as tl
    from triton.runtime import interpreter

    function = define_functions(SOURCE, [fn])[fn]
    x = (np.random.default_rng(0).standard_normal(shape) * 9).astype(kind)
    if x.dtype.kind == "f":
        x.flat[3] = np.nan
    arrays = [x, np.arange(x.size).reshape(shape)][: 2 if fn == "largest_and_where" else 1]
    scalar = {"float32": tl.float32, "float16": tl.float16, "int8": tl.int8, "int64": tl.int64}
    operands = [
        tl.core.tensor(
            interpreter.TensorHandle(a, scalar[a.dtype.name]),
            tl.block_type(scalar[a.dtype.name], list(shape)),
        )
        for a in arrays
    ]
    language = interpreter._patch_lang(function.fn)
    try:
        for axis in range(len(shape)):
            reduction = interpreter.ReduceOps(axis, function, keep_dims=False)
            wanted = reduction.generic_reduce(tuple(operands))
            for a, b in zip(reduce_pairs(reduction, operands), wanted, strict=True):
                assert a.type == b.type
                assert a.handle.data.dtype == b.handle.data.dtype
                np.testing.assert_array_equal(a.handle.data, b.handle.data)
    finally:
        language.restore()
