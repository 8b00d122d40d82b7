"""A pool of threads that run a program's `work`, outside of Python's lock."""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from superopt.errors import UsageError
from superopt.kernels.llvm.chunk_threads import STATE_BYTES, STOP_WORD, WAKE_WORD

Work = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Pool:
    """state: the words that threads share; pid: the owning process (a fork has no threads)."""

    state: np.ndarray
    pid: int
    threads: tuple[threading.Thread, ...]


def start_pool(work: Work, workspaces: list[int], owner: object, call_count: int = 0) -> Pool:
    """Start a thread for each workspace; it runs `work(state, workspace)`. call_count: calls whose
    numbers of chunks are in `state`. Threads end with the
    pool or the process; until then `owner` keeps their code and memory alive.

    Raises UsageError if the system starts no more threads.
    """
    size = STATE_BYTES + 8 * call_count
    held = np.zeros(size + 64, np.uint8)
    begin = -held.ctypes.data % 64
    state = held[begin : begin + size]
    at = state.ctypes.data
    threads = tuple(
        threading.Thread(target=work, args=(at, w), name="superopt", daemon=True)
        for w in workspaces
    )
    for n, t in enumerate(threads):
        try:
            t.start()
        except RuntimeError as e:
            _stop_threads(state, threads[:n], os.getpid(), owner)
            raise UsageError(
                f"thread {n + 2} of {len(threads) + 1} cannot be started", str(e),
                "compile it for fewer threads, or allow the process more",
            ) from None  # fmt: skip
    pool = Pool(state, os.getpid(), threads)
    weakref.finalize(pool, _stop_threads, state, threads, os.getpid(), owner)
    return pool


def _stop_threads(
    state: np.ndarray, threads: tuple[threading.Thread, ...], pid: int, owner: object
) -> None:
    if os.getpid() != pid:
        return  # a fork: the threads belong to the parent
    words = state.view(np.int64)
    words[STOP_WORD] = 1
    for t in threads:
        while t.is_alive():
            words[WAKE_WORD] += 1
            _wake_sleepers(state.ctypes.data + 8 * WAKE_WORD)
            t.join(0.01)


def _wake_sleepers(address: int) -> None:
    """Wake all sleepers on this word (Linux; elsewhere none sleep)."""
    libc = ctypes.CDLL(None, use_errno=True)
    number = {"x86_64": 202, "aarch64": 98}.get(os.uname().machine)
    if number is not None and hasattr(libc, "syscall"):
        libc.syscall(
            ctypes.c_long(number), ctypes.c_void_p(address), ctypes.c_long(1),
            ctypes.c_long(2**31 - 1), None, None, ctypes.c_long(0),
        )  # fmt: skip
