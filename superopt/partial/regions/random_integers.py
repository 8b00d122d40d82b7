"""Random values of inputs that are not floats."""

from __future__ import annotations

import numpy as np

from superopt.te.expr.dtype import BOOL, DType

RANGE_SIZES = (
    3,
    7,
    97,
)  # how many integers there are, by the draw, or in every other by the element


def random_integers(state: np.ndarray, dtype: DType, draw: np.ndarray | int) -> np.ndarray:
    """Return bools, or integers (signed ones around 0), from hashes and the draw."""
    if dtype == BOOL:
        return np.asarray(state % np.uint64(2) == 1)
    own = (state >> np.uint64(60)).astype(np.int64)
    span = np.asarray(RANGE_SIZES)[
        np.where(np.asarray(draw) % 2 == 0, own, draw) % len(RANGE_SIZES)
    ]
    x = (state >> np.uint64(1)).astype(np.int64) % span
    return np.asarray(x - span // 2 if dtype.kind == "i" else x)
