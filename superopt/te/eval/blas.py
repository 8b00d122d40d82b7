"""Matrix products by numpy, on one thread of OpenBLAS where more would wait for each other.

OpenBLAS divides a product evenly among its threads, which spin until the last one is done. On a
machine with other work they wait for each other's time slices: at a load of 9 on two cores, 1500
products of 2e6 multiplications took 7.1 s of processor time and 25 s on two threads, 0.4 s and
0.9 s on one; products of 1e8 took 5 times as much. Another BLAS, or an OpenBLAS that is not found,
keeps its threads.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

# openblas_get_num_threads as builds of OpenBLAS name it: numpy's wheels, and others.
_NAMES = tuple(
    (f"{prefix}openblas_get_num_threads{suffix}", f"{prefix}openblas_set_num_threads{suffix}")
    for prefix in ("scipy_", "")
    for suffix in ("64_", "", "_64")
)
MIN_PARALLEL_MULTIPLICATIONS = 1 << 24  # some 2 ms on one core
BUSY_LOAD = 1.25  # runnable threads per core, OpenBLAS's own included
_lock = threading.Lock()
_callers = 0  # that want one thread now
_before = 0  # threads that OpenBLAS had without them


def matmul(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return `np.matmul(a, b)`."""
    large = a.size * b.shape[-1] >= MIN_PARALLEL_MULTIPLICATIONS
    if a.dtype.kind not in "fc" or (large and not _is_busy()):
        return np.asarray(np.matmul(a, b))
    with single_thread():
        return np.asarray(np.matmul(a, b))


def _is_busy() -> bool:
    return os.getloadavg()[0] > BUSY_LOAD * (os.cpu_count() or 1)


@contextmanager
def single_thread() -> Iterator[None]:
    """Let OpenBLAS use one thread; when the last caller is done it has those again that it had."""
    global _callers, _before
    found = openblas()
    if found is None:
        yield
        return
    get, put = found
    with _lock:
        if _callers == 0:
            _before = get()
            put(1)
        _callers += 1
    try:
        yield
    finally:
        with _lock:
            _callers -= 1
            if _callers == 0:
                put(_before)


@lru_cache(maxsize=1)
def openblas() -> tuple[Any, Any] | None:
    """Return the functions that get and set the threads of numpy's OpenBLAS; None without one."""
    for path in _loaded_libraries():
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue
        for get, put in _NAMES:
            if hasattr(library, get) and hasattr(library, put):
                return getattr(library, get), getattr(library, put)
    return None


def _loaded_libraries() -> list[str]:
    """Return the files of this process whose names contain "openblas"."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    paths = (line.partition("/") for line in lines)
    return sorted({f"/{rest}" for _, slash, rest in paths if slash and "openblas" in rest})
