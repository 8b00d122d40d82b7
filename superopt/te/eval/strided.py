"""Strided views of arrays of any element type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided


def strided_view(
    start: np.ndarray, shape: Sequence[int], strides: Sequence[int], writeable: bool = False
) -> np.ndarray:
    """Return the view of this shape and these strides (bytes) whose first element is that of
    `start`."""
    shape, strides = tuple(shape), tuple(strides)
    if not writeable and (start.shape, start.strides) == (shape, strides):
        return _read_only(np.asarray(start).view())  # numpy turns arrays without axes into scalars
    if start.dtype.isbuiltin == 1:
        plain = start.flags.c_contiguous and not writeable and not start.dtype.hasobject
        if plain and 0 not in shape and min(strides, default=0) >= 0:
            last = sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
            if last < start.nbytes:  # else it extends in front of the first element
                # 10 times as fast as the general case, which dominated small evaluations
                return _read_only(np.ndarray(shape, start.dtype, start, 0, strides))
        return as_strided(start, shape, strides, writeable=writeable)
    # numpy makes a view by the dtype's name, which some ml_dtypes types lack
    raw = start.view(f"u{start.itemsize}")
    return as_strided(raw, shape, strides, writeable=writeable).view(start.dtype)


def _read_only(view: np.ndarray) -> np.ndarray:
    view.flags.writeable = False
    return view


def slice_dims(x: np.ndarray, first_dim: int, ranges: Sequence[slice]) -> np.ndarray:
    """Return `x` with the dimensions from `first_dim` on sliced."""
    where: list[Any] = [slice(None)] * first_dim
    where.extend(ranges)
    where.append(...)  # without it, an array without axes becomes a scalar
    return np.asarray(x[tuple(where)])
