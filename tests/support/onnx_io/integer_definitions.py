"""Definitions of quantized operators in numpy: integers exactly, modulo 2^32, the rest in float64.
They are independent of superopt's tensor expressions."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

Array = np.ndarray


def dequantize(x: Array, scale: Array, zero: Array | None) -> Array:
    return (x.astype(np.int64) - (0 if zero is None else zero.astype(np.int64))) * np.float64(scale)


def quantize(x: Array, scale: Array, zero: Array | None, dtype: np.dtype) -> Array:
    ends = np.iinfo(dtype)
    whole = np.rint(x / np.float64(scale)) + (0 if zero is None else np.float64(zero))
    return np.clip(whole, ends.min, ends.max).astype(dtype)


def softmax(x: Array, axis: int | tuple[int, ...] = -1) -> Array:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def integer_product(x: Array, w: Array, x_zero: Array | None, w_zero: Array | None) -> Array:
    """Return the product of integers less their zero points, modulo 2^32."""
    a, b = (
        v.astype(np.int64) - (0 if z is None else z.astype(np.int64))
        for v, z in ((x, x_zero), (w, w_zero))
    )
    return (a @ b).astype(np.int32)


def windows(
    x: Array,
    kernel: tuple[int, ...],
    strides: tuple[int, ...],
    pads: tuple[int, ...],
    dilations: tuple[int, ...],
    fill: float,
) -> Iterator[tuple[tuple[int, ...], Array]]:
    """Yield each place of the result with its window (batch, channels, *kernel), padded with
    `fill`."""  # fmt: skip
    count = len(kernel)
    pairs = [(pads[d], pads[d + count]) for d in range(count)]
    padded = np.pad(x, [(0, 0), (0, 0), *pairs], constant_values=fill)
    spans = [d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True)]
    out = [(n - s) // st + 1 for n, s, st in zip(padded.shape[2:], spans, strides, strict=True)]
    for at in np.ndindex(*out):
        starts = [i * st for i, st in zip(at, strides, strict=True)]
        steps = zip(starts, spans, dilations, strict=True)
        yield at, padded[(..., *(slice(b, b + span, step) for b, span, step in steps))]


def reduce_windows(
    x: Array,
    kernel: tuple[int, ...],
    strides: tuple[int, ...],
    pads: tuple[int, ...],
    fill: float,
    reduce: Callable[[Array], Array],
) -> Array:
    """reduce: windows (batch, channels, elements) to (batch, channels)."""  # fmt: skip
    found = dict(windows(x, kernel, strides, pads, (1,) * len(kernel), fill))
    out = [max(at[d] for at in found) + 1 for d in range(len(kernel))]
    values = {at: reduce(w.reshape(*x.shape[:2], -1)) for at, w in found.items()}
    return np.stack([*values.values()], axis=-1).reshape(*x.shape[:2], *out)


def average_windows(
    x: Array, kernel: tuple[int, ...], strides: tuple[int, ...], pads: tuple[int, ...], padded: bool
) -> Array:
    """Return the means of windows. padded: padding counts."""
    total = reduce_windows(x, kernel, strides, pads, 0, lambda w: w.sum(-1))
    ones = np.ones_like(x, dtype=np.float64)
    counts = reduce_windows(ones, kernel, strides, pads, padded, lambda w: w.sum(-1))
    return total / counts


def max_windows(
    x: Array, kernel: tuple[int, ...], strides: tuple[int, ...], pads: tuple[int, ...]
) -> Array:
    low = np.iinfo(x.dtype).min if x.dtype.kind in "iu" else -np.inf
    return reduce_windows(x, kernel, strides, pads, low, lambda w: w.max(-1))


def integer_convolution(
    x: Array,
    w: Array,
    x_zero: Array | None,
    w_zero: Array | None,
    strides: tuple[int, ...],
    pads: tuple[int, ...],
    dilations: tuple[int, ...],
    group: int,
) -> Array:
    """Return the convolution of integers less their zero points, modulo 2^32. Padding is the zero
    point. w_zero: one number, or one for each channel of the result."""
    a = x.astype(np.int64) - (0 if x_zero is None else x_zero.astype(np.int64))
    zeros = 0 if w_zero is None else w_zero.astype(np.int64).reshape(-1, *[1] * (w.ndim - 1))
    parts = np.split(w.astype(np.int64) - zeros, group)
    found = {}
    for at, window in windows(a, w.shape[2:], strides, pads, dilations, 0):
        rows = np.split(window, group, axis=1)
        found[at] = np.concatenate(
            [
                v.reshape(len(x), -1) @ own.reshape(len(own), -1).T
                for v, own in zip(rows, parts, strict=True)
            ],
            axis=1,
        )
    out = [max(at[d] for at in found) + 1 for d in range(w.ndim - 2)]
    values = np.stack([*found.values()], axis=-1)
    return values.reshape(len(x), len(w), *out).astype(np.int32)
