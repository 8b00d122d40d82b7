"""Integer products as `vpmaddubsw` computes them: what peers give on x86 without VNNI."""

from __future__ import annotations

import numpy as np

INT16 = np.iinfo(np.int16)


def saturating_matmul(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Return x @ w for uint8 `x` and int8 `w`: neighbouring products are added in 16 bits with
    saturation, these sums in 32 bits.

    >>> saturating_matmul(np.uint8([[255, 255]]), np.int8([[127], [127]]))
    array([[32767]], dtype=int32)
    """
    assert (x.dtype, w.dtype) == (np.uint8, np.int8)
    odd = x.shape[-1] % 2
    a = np.pad(x.astype(np.int64), [(0, 0)] * (x.ndim - 1) + [(0, odd)])
    b = np.pad(w.astype(np.int64), [(0, odd), (0, 0)])
    pairs = [a[..., None, k::2].swapaxes(-1, -2) * b[k::2] for k in (0, 1)]
    return np.clip(pairs[0] + pairs[1], INT16.min, INT16.max).sum(axis=-2).astype(np.int32)
