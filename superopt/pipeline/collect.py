"""Python's search for cycles of dead objects, made rare while large graphs are built."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# Graphs have no cycles, and grow by hundreds of thousands of objects: with the usual (700, 10, 10)
# a fifth of the time on 20,000 nodes went into looking at live ones again and again.
THRESHOLDS = (50_000, 20, 20)


@contextmanager
def collecting_rarely() -> Iterator[None]:
    """The process's thresholds are raised meanwhile, and put back."""
    before = gc.get_threshold()
    gc.set_threshold(*THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
