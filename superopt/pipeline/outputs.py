"""Allocation of output arrays. Large arrays that nobody references any more are reused: for sizes
above some threshold the system maps new pages, and each page faults on its first write (exp of 40
MB took 7 ms, and takes 2.4 ms with reuse)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from sys import getrefcount

import numpy as np

Spec = tuple[tuple[int, ...], np.dtype]
LARGE = 1 << 20  # bytes; smaller arrays are not reused
LARGEST = 1 << 28  # bytes; larger arrays are not kept
# arrays kept for each output: the last result is still alive while the next one is computed
KEPT = 3
_ALONE = [np.empty(0)]
FREE = getrefcount(_ALONE[0])  # reference count of an array that only a list holds


def outputs(specs: Sequence[Spec]) -> Callable[[], list[np.ndarray]]:
    """Return a function that returns uninitialised arrays of these shapes and types which nobody
    else references. It is not thread-safe."""
    empty = np.empty
    if not any(LARGE <= _bytes(s) <= LARGEST for s in specs):
        return lambda: [empty(shape, dtype) for shape, dtype in specs]
    held: list[list[np.ndarray] | None] = [
        [] if LARGE <= _bytes(s) <= LARGEST else None for s in specs
    ]

    def new() -> list[np.ndarray]:
        out = []
        for (shape, dtype), kept in zip(specs, held, strict=True):
            if kept is None:
                out.append(empty(shape, dtype))
                continue
            for n in range(len(kept)):
                if getrefcount(kept[n]) == FREE:
                    whole = kept[n]
                    break
            else:
                whole = empty(shape, dtype)
                kept.append(whole)
                del kept[:-KEPT]
            out.append(whole.view())  # a view keeps `whole` alive, as do views of it
        return out

    return new


def _bytes(spec: Spec) -> int:
    return prod(spec[0]) * spec[1].itemsize
