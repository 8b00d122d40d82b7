"""Contexts: what a call of a program writes besides its outputs. Calls at the same time have one
each; code and constants are shared."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from dataclasses import dataclass
from typing import Any

import numpy as np

from superopt import guard
from superopt.errors import OutOfMemory
from superopt.kernels.runtime.thread_pool import Pool

ALIGNMENT_BYTES = 64
HUGE_PAGE_BYTES = 1 << 21  # of a huge page
MIN_HUGE_PAGE_BYTES = HUGE_PAGE_BYTES // 2
MEMORY_GROWTH = 1.5  # times what is needed, where memory must grow for larger sizes
MAX_IDLE_THREADS = 32  # of the idle contexts of a program, with the threads of callers
MAX_IDLE_BYTES = 1 << 28  # of the idle contexts of a program, if it is more than one


@dataclass(slots=True, weakref_slot=True, eq=False)
class CallContext:
    """Memory for one call at a time, and threads. workspaces: one for each thread. addresses: those
    of the memory, the table of constants and the first workspace; address_table: the same, and that
    of the state of threads. pool: the other threads; None before the first call."""

    memory: np.ndarray
    workspaces: list[np.ndarray]
    addresses: tuple[int, int, int]
    address_table: Any
    pool: Pool | None = None

    @property
    def own_bytes(self) -> int:
        return sum(a.nbytes for a in (self.memory, *self.workspaces))

    def reserve(self, memory_bytes: int, workspace_bytes: int) -> None:
        """Let the memory and each workspace have so many bytes. Raises OutOfMemory."""
        try:
            if memory_bytes > len(self.memory):
                self.memory = aligned_zeros(int(MEMORY_GROWTH * memory_bytes))
            if workspace_bytes > len(self.workspaces[0]):
                size = int(MEMORY_GROWTH * workspace_bytes)
                grown = [aligned_zeros(size) for _ in self.workspaces]
                self.pool = None  # its threads have the old workspaces
                self.workspaces = grown
        except MemoryError as e:
            raise no_context_memory(memory_bytes, str(e)) from None
        at = self.memory.ctypes.data, self.addresses[1], self.workspaces[0].ctypes.data
        self.addresses = at
        self.address_table[:3] = at

    def idle_limit(self) -> int:
        """Return how many idle contexts like this one a program keeps."""
        own = max(self.own_bytes, 1)
        return max(min(MAX_IDLE_THREADS // len(self.workspaces), MAX_IDLE_BYTES // own), 1)


def make_context(
    memory_bytes: int, workspace_bytes: int, threads: int, constant_table: int
) -> CallContext:
    """Return a context; constant_table: its address. Raises MemoryError."""
    spaces = [aligned_zeros(workspace_bytes) for _ in range(threads)]
    memory = aligned_zeros(memory_bytes)
    addresses = memory.ctypes.data, constant_table, spaces[0].ctypes.data
    return CallContext(memory, spaces, addresses, (ctypes.c_void_p * 4)(*addresses, 0))


def no_context_memory(memory_bytes: int, reason: str) -> OutOfMemory:
    return OutOfMemory(
        f"no memory for a call, which takes {memory_bytes} bytes",
        reason or "the system has no more",
        "pass smaller inputs, or make fewer calls at the same time",
    )


def aligned_zeros(size: int) -> np.ndarray:
    """Return zeroed bytes aligned to 64 bytes; large sizes use huge pages where the system supports
    them: small pages are scattered, which defeats the prefetcher.

    Raises MemoryError where the system or the call's limit does not admit them."""
    guard.require_memory(size, "a program's constants or memory")
    if size < MIN_HUGE_PAGE_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        held = np.zeros(size + ALIGNMENT_BYTES, np.uint8)
        begin = -held.ctypes.data % ALIGNMENT_BYTES
        return held[begin : begin + size]
    try:
        # private to a fork
        pages = mmap.mmap(-1, size + HUGE_PAGE_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as e:
        raise MemoryError(f"cannot allocate {size} bytes: {e.strerror}") from None
    with contextlib.suppress(OSError):  # a system without huge pages
        pages.madvise(mmap.MADV_HUGEPAGE)
    held = np.frombuffer(pages, np.uint8)
    begin = -held.ctypes.data % HUGE_PAGE_BYTES
    return held[begin : begin + size]
