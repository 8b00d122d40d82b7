"""The parts of elementwise kernels."""

from __future__ import annotations

import pytest

from superopt.kernels.llvm.codegen import chunk_count
from superopt.kernels.loops.lower import lower_kernel
from superopt.te.expr.dtype import F32
from superopt.te.expr.tensor import Tensor, compute


@pytest.mark.parametrize(
    ("shape", "least", "most"),
    [((1, 3, 224, 224), 16, 64), ((1, 64, 56, 56), 16, 64), ((1, 3, 8, 8), 3, 3)],
)
def test_large_planes_are_divided(shape: tuple[int, ...], least: int, most: int) -> None:
    x = Tensor("x", F32, shape)
    y = compute(shape, lambda *i: x[i] * 2.0, name="y")
    assert least <= chunk_count(lower_kernel("k", [x], [y])) <= most
