"""Strided views of arrays of any element type."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.lib.stride_tricks import as_strided


def strided(
    start: np.ndarray, shape: Sequence[int], strides: Sequence[int], writeable: bool = False
) -> np.ndarray:
    """The view of this shape and these strides in bytes whose first element is that of `start`."""
    if start.dtype.isbuiltin == 1:
        return as_strided(start, shape, strides, writeable=writeable)
    # numpy makes a view by way of the dtype's name, and some types beside its own lack one
    raw = start.view(f"u{start.itemsize}")
    return as_strided(raw, shape, strides, writeable=writeable).view(start.dtype)


def part(x: np.ndarray, lead: int, ranges: Sequence[slice]) -> np.ndarray:
    """`x` with the dimensions from `lead` on cut to ranges."""
    where: list[slice] = [slice(None)] * lead
    where.extend(ranges)
    return x[tuple(where)]
