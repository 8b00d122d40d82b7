"""A program in this process: code, constants, memory, and calls. This module does not depend on
planning, so that a cached program loads fast."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from superopt import guard
from superopt.kernels.engine import Machine, linked
from superopt.kernels.pool import Pool, started

if TYPE_CHECKING:
    from superopt.plan.build import Program
    from superopt.plan.constants import Constants

ALIGNED = 64
PAGE = 1 << 21  # of a huge page
LARGE = PAGE // 2
Run = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Image:
    """A compiled program. objects: object files with `run`; with `work` for several threads; and
    with `enter` if Python's objects have the expected layout. constant_bytes, memory_bytes,
    workspace_bytes: sizes."""

    objects: tuple[bytes, ...]
    threads: int
    enters: bool
    constants: int
    memory: int
    workspace: int


@dataclass(slots=True)
class Code:
    """A loaded program. `run` takes a table of pointers and addresses, `enter` a tuple of arrays
    and a table of addresses (`address_table`). `engine` owns the code. addresses: those of the
    memory, the table of constants and the first workspace. load_plan: returns the plan. Not
    reentrant."""

    planned: Callable[[], Program]
    threads: int
    run: Run
    work: Run | None
    enter: Run | None
    constants: Constants
    memory: np.ndarray
    workspaces: list[np.ndarray]
    places: tuple[int, int, int]
    fixed: Any
    engine: Any
    pool: Pool | None = field(default=None)

    @property
    def program(self) -> Program:
        return self.planned()

    @property
    def bytes(self) -> int:
        """Return the bytes that this program owns, without machine code; constants may be
        shared."""
        return sum(a.nbytes for a in (self.memory, *self.workspaces))

    def __call__(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        """Compute the outputs: contiguous arrays of the right types."""
        self.call((*inputs, *outputs))

    def call(self, arrays: tuple[np.ndarray, ...]) -> None:
        """Compute the outputs; arrays: the inputs, then the outputs."""
        if self.enter is None:
            self.run(table(arrays), *self.places, self.state())
            return
        if self.work is not None:
            self.fixed[3] = self.state()
        self.enter(arrays, self.fixed)

    def state(self) -> int:
        """Return the address of the state that threads share; start the threads once in each
        process."""
        if self.work is None:
            return 0
        if self.pool is None or self.pool.process != os.getpid():
            owns = (self.engine, self.constants, self.memory, self.workspaces)
            self.pool = started(self.work, [w.ctypes.data for w in self.workspaces[1:]], owns)
        return int(self.pool.state.ctypes.data)


def table(arrays: Sequence[np.ndarray]) -> Any:
    """Return the addresses of the arrays' elements."""
    return (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))


def ready(
    image: Image, constants: Constants, machine: Machine, planned: Callable[[], Program]
) -> Code:
    """Return the program, ready to be called."""
    engine = linked(image.objects, machine)
    spaces = [aligned(image.workspace) for _ in range(image.threads)]
    memory = aligned(image.memory)
    places = (memory.ctypes.data, constants.table.ctypes.data, spaces[0].ctypes.data)
    run, work, enter = functions(engine, image)
    fixed = (ctypes.c_void_p * 4)(*places, 0)
    return Code(
        planned, image.threads, run, work, enter, constants, memory, spaces, places, fixed, engine
    )


def functions(
    engine: Any, image: Image, *, timed: bool = False
) -> tuple[Run, Run | None, Run | None]:
    """Return the entry points `run`, `work` (with several threads) and `enter` (if present)."""

    def found(name: str, *kinds: Any) -> Run:
        return ctypes.CFUNCTYPE(None, *kinds)(engine.get_function_address(name))

    place = ctypes.c_void_p
    run = found("run", *[place] * (6 if timed else 5))
    work = found("work", place, place) if image.threads > 1 else None
    return run, work, found("enter", ctypes.py_object, place) if image.enters else None


def aligned(size: int) -> np.ndarray:
    """Return zeroed bytes aligned to 64 bytes; large sizes use huge pages where the system supports
    them: small pages are scattered, which defeats the prefetcher.

    Raises MemoryError where the system or the call's limit does not admit them."""
    guard.admit(size, "a program's constants or memory")
    if size < LARGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        held = np.zeros(size + ALIGNED, np.uint8)
        begin = -held.ctypes.data % ALIGNED
        return held[begin : begin + size]
    try:
        # private to a fork
        pages = mmap.mmap(-1, size + PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as e:
        raise MemoryError(f"cannot allocate {size} bytes: {e.strerror}") from None
    with contextlib.suppress(OSError):  # a system without huge pages
        pages.madvise(mmap.MADV_HUGEPAGE)
    held = np.frombuffer(pages, np.uint8)
    begin = -held.ctypes.data % PAGE
    return held[begin : begin + size]
