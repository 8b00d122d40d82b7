"""Allocation of output arrays. Large arrays that nobody references any more are reused: for sizes
above some threshold the system maps new pages, and each page faults on its first write (exp of 40
MB took 7 ms, and takes 2.4 ms with reuse)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from sys import getrefcount

import numpy as np

ArraySpec = tuple[tuple[int, ...], np.dtype]
KeptArrays = tuple[list[np.ndarray], ...]
MIN_REUSED_BYTES = 1 << 20  # bytes; smaller arrays are not reused
MAX_REUSED_BYTES = 1 << 28  # bytes; larger arrays are not kept
# arrays kept for each output: the last result is still alive while the next one is computed
MAX_KEPT_ARRAYS = 3
CAPACITY_BITS = 4  # significant bits of the bytes of a kept array, so that it fits larger outputs
MAX_UNUSED_PART = 0.5  # of a kept array that is reused for a smaller output
_UNSHARED = np.empty(0)
UNSHARED_REFCOUNT = getrefcount(_UNSHARED)  # reference count of an array that only a name holds


def no_kept_arrays(count: int) -> KeptArrays:
    """Return lists of the arrays that may be used again, for so many outputs."""
    return tuple([] for _ in range(count))


def output_allocator(
    specs: Sequence[ArraySpec], kept_arrays: Sequence[list[np.ndarray]]
) -> Callable[[], list[np.ndarray]]:
    """Return a function that returns uninitialised arrays of these shapes and types which nobody
    else references. kept_arrays: a list for each, of those that may be used again, as bytes; the
    outputs of a program at different sizes share them. Several threads may call it: one that looks
    at a kept array has taken it from the list, an operation that Python makes at once."""
    empty = np.empty
    sizes = (prod(shape) * dtype.itemsize for shape, dtype in specs)
    if not any(MIN_REUSED_BYTES <= n <= MAX_REUSED_BYTES for n in sizes):
        return lambda: [empty(shape, dtype) for shape, dtype in specs]
    each = [(shape, dtype, kept) for (shape, dtype), kept in zip(specs, kept_arrays, strict=True)]
    return lambda: [new_array(*some) for some in each]


def new_array(shape: tuple[int, ...], dtype: np.dtype, kept: list[np.ndarray]) -> np.ndarray:
    """Return an array as of `output_allocator`."""
    size = prod(shape) * dtype.itemsize
    if not MIN_REUSED_BYTES <= size <= MAX_REUSED_BYTES:
        return np.empty(shape, dtype)
    whole = _take_unshared(kept, size)
    if whole is None:
        step = 1 << max(size.bit_length() - CAPACITY_BITS, 0)
        whole = np.empty(-(-size // step) * step, np.uint8)
    out: np.ndarray = np.ndarray(shape, dtype, whole)  # it keeps `whole` alive, as its views do
    kept.append(whole)
    del kept[:-MAX_KEPT_ARRAYS]
    return out


def _take_unshared(kept: list[np.ndarray], size: int) -> np.ndarray | None:
    """Return an array for so many bytes that nobody else references, removed from the list; None if
    there is none."""
    for _ in range(len(kept)):
        try:
            whole = kept.pop(0)
        except IndexError:  # other threads have taken all
            return None
        fits = MAX_UNUSED_PART * len(whole) <= size <= len(whole)
        if fits and getrefcount(whole) == UNSHARED_REFCOUNT:
            return whole
        kept.append(whole)
    return None
