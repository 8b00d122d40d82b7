"""Arrays for results. Large ones that nobody has any more are used again: of memory that the system
gives anew, as it does from some size on, each page is made when it is first written. (exp of 40 MB
took 7 ms so, and takes 2.4.)"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from sys import getrefcount

import numpy as np

Spec = tuple[tuple[int, ...], np.dtype]
LARGE = 1 << 20  # bytes, from which on that may be
LARGEST = 1 << 28  # bytes that are not kept
KEPT = 3  # arrays of an output: the last result is still there while the next one is computed
_ALONE = [np.empty(0)]
FREE = getrefcount(_ALONE[0])  # of an array that only a list has


def outputs(specs: Sequence[Spec]) -> Callable[[], list[np.ndarray]]:
    """Gives arrays of these shapes and types, whatever is in them, that nobody else has. Not to be
    called by several threads at a time."""
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
            out.append(whole.view())  # what is made of it, and who has that, has `whole`, too
        return out

    return new


def _bytes(spec: Spec) -> int:
    return prod(spec[0]) * spec[1].itemsize
