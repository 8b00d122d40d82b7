"""Zeros around a picture: written anew, all of them, and nothing else."""

from dataclasses import replace
from math import prod

import numpy as np
import pytest

from superopt.kernels.llvm.codegen import chunk_count
from superopt.kernels.loops import zero_border
from superopt.kernels.loops.layout import parse_layout
from superopt.kernels.runtime.cpu import load_kernel
from superopt.te.expr.dtype import F16, F32, DType

CASES = [
    ((1, 2, 6, 7, 16), (0, 0, 1, 1, 0), F32),
    ((2, 3, 5, 9), (0, 0, 0, 3), F32),
    ((1, 9, 11, 3), (0, 2, 1, 0), F32),
    ((3, 30, 4), (0, 7, 0), F32),
    ((4, 6, 5, 5, 8), (0, 1, 2, 1, 0), F16),
    ((6, 5), (1, 2), F32),
    ((2, 2, 4, 4), (0, 0, 2, 2), F32),
]


@pytest.mark.parametrize(("shape", "borders", "dtype"), CASES)
def test_all_zeros_and_nothing_else(
    shape: tuple[int, ...], borders: tuple[int, ...], dtype: DType
) -> None:
    kernel = replace(zero_border.clear_border_kernel(dtype, shape, borders), name="k")
    code = load_kernel(kernel)
    given = np.full(shape, np.nan, np.float16 if dtype == F16 else np.float32)
    wanted = np.zeros_like(given)
    inner = tuple(slice(b, n - b) for n, b in zip(shape, borders, strict=True))
    wanted[inner] = np.nan
    code(given.reshape(-1))
    np.testing.assert_array_equal(given, wanted)
    assert zero_border.count_border_elements(shape, borders) == int((wanted == 0).sum())
    first = next(d for d, b in enumerate(borders) if b)
    assert chunk_count(kernel) == prod(shape[:first])


def test_borders_of_layouts() -> None:
    assert parse_layout("i0 i1//16 i2+1 i3+2 i1%16").borders() == (0, 0, 1, 2, 0)
    assert parse_layout("i0 i1+1//16 i1+1%16").borders() is None  # within blocks: written once
