"""A program in this process: code, constants, memory, and calls. This module does not depend on
planning, so that a cached program loads fast."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from superopt import guard
from superopt.kernels.runtime.engine import Machine, link_objects
from superopt.kernels.runtime.thread_pool import Pool, start_pool

if TYPE_CHECKING:
    from superopt.plan.program.constant_pool import PackedConstants
    from superopt.plan.program.program import Program

ALIGNMENT_BYTES = 64
HUGE_PAGE_BYTES = 1 << 21  # of a huge page
MIN_HUGE_PAGE_BYTES = HUGE_PAGE_BYTES // 2
MEMORY_GROWTH = 1.5  # times what is needed, where memory must grow for larger sizes
Run = Callable[..., None]
CountCall = Callable[[tuple[np.ndarray, ...], float], bool]


@dataclass(frozen=True, slots=True)
class ProgramImage:
    """A compiled program. objects: object files with `run`; with `work` for several threads; and
    with `enter` if Python's objects have the expected layout. constant_bytes, memory_bytes,
    workspace_bytes: sizes. call_count: of kernels and loops."""

    objects: tuple[bytes, ...]
    threads: int
    has_enter: bool
    constant_bytes: int
    memory_bytes: int
    workspace_bytes: int
    call_count: int = 0


@dataclass(slots=True)
class LoadedProgram:
    """A loaded program. `run` takes a table of pointers and addresses, `enter` a tuple of arrays
    and a table of addresses (`address_table`). `engine` owns the code. addresses: those of the
    memory, the table of constants and the first workspace. load_plan: returns the plan. Not
    reentrant."""

    load_plan: Callable[[], Program]
    threads: int
    run: Run
    work: Run | None
    enter: Run | None
    constants: PackedConstants
    memory: np.ndarray
    workspaces: list[np.ndarray]
    addresses: tuple[int, int, int]
    address_table: Any
    engine: Any
    pool: Pool | None = field(default=None)
    call_count: int = 0

    @property
    def program(self) -> Program:
        return self.load_plan()

    @property
    def own_bytes(self) -> int:
        """Return the bytes that this program owns, without machine code; constants may be
        shared."""
        return sum(a.nbytes for a in (self.memory, *self.workspaces))

    def __call__(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        """Compute the outputs: contiguous arrays of the right types."""
        self.call((*inputs, *outputs))

    def call(self, arrays: tuple[np.ndarray, ...]) -> None:
        """Compute the outputs; arrays: the inputs, then the outputs."""
        if self.enter is None:
            self.run(pointer_table(arrays), *self.addresses, self.thread_state())
            return
        if self.work is not None:
            self.address_table[3] = self.thread_state()
        self.enter(arrays, self.address_table)

    @property
    def loaded_program(self) -> LoadedProgram:
        """The program, as of SizedCode."""
        return self

    def at_sizes(
        self,
        memory_bytes: int,
        workspace_bytes: int,
        words: Sequence[int],
        count_call: CountCall | None,
    ) -> SizedCode:
        """Return a program of symbolic sizes at given ones; see SizedCode."""
        values = np.array(words, np.int64)
        return SizedCode(self, memory_bytes, workspace_bytes, values, count_call)

    def reserve(self, memory_bytes: int, workspace_bytes: int) -> None:
        """Let the memory and each workspace have so many bytes, for programs of symbolic sizes."""
        if memory_bytes <= len(self.memory) and workspace_bytes <= len(self.workspaces[0]):
            return
        self.pool = None  # its threads have the old workspaces
        if memory_bytes > len(self.memory):
            self.memory = aligned_zeros(int(MEMORY_GROWTH * memory_bytes))
        if workspace_bytes > len(self.workspaces[0]):
            size = int(MEMORY_GROWTH * workspace_bytes)
            self.workspaces = [aligned_zeros(size) for _ in range(self.threads)]
        at = self.memory.ctypes.data, self.addresses[1], self.workspaces[0].ctypes.data
        self.addresses = at
        self.address_table[:3] = at

    def thread_state(self) -> int:
        """Return the address of the state that threads share; start the threads once in each
        process."""
        if self.work is None:
            return 0
        if self.pool is None or self.pool.pid != os.getpid():
            owns = (self.engine, self.constants, self.memory, self.workspaces)
            self.pool = start_pool(
                self.work, [w.ctypes.data for w in self.workspaces[1:]], owns, self.call_count
            )
        return int(self.pool.state.ctypes.data)


@dataclass(slots=True)
class SizedCode:
    """A program of symbolic sizes at given ones: it is called as a LoadedProgram. words: the values
    that it reads, its last argument. count_call: is given the arrays and the seconds of each call,
    until it returns False."""

    loaded_program: LoadedProgram
    memory_bytes: int
    workspace_bytes: int
    words: np.ndarray
    count_call: CountCall | None = None

    @property
    def program(self) -> Program:
        return self.loaded_program.program

    @property
    def constants(self) -> PackedConstants:
        return self.loaded_program.constants

    @property
    def own_bytes(self) -> int:
        return self.loaded_program.own_bytes

    def __call__(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        """Compute the outputs: contiguous arrays of the right types."""
        self.call((*inputs, *outputs))

    def call(self, arrays: tuple[np.ndarray, ...]) -> None:
        """Compute the outputs; arrays: the inputs, then the outputs."""
        begin = time.perf_counter()
        self.loaded_program.reserve(self.memory_bytes, self.workspace_bytes)
        self.loaded_program.call((*arrays, self.words))
        seconds = time.perf_counter() - begin
        if self.count_call is not None and not self.count_call(arrays, seconds):
            self.count_call = None


def pointer_table(arrays: Sequence[np.ndarray]) -> Any:
    """Return the addresses of the arrays' elements."""
    return (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))


def load_image(
    image: ProgramImage,
    constants: PackedConstants,
    machine: Machine,
    load_plan: Callable[[], Program],
) -> LoadedProgram:
    """Return the program, ready to be called."""
    engine = link_objects(image.objects, machine)
    spaces = [aligned_zeros(image.workspace_bytes) for _ in range(image.threads)]
    memory = aligned_zeros(image.memory_bytes)
    places = (memory.ctypes.data, constants.table.ctypes.data, spaces[0].ctypes.data)
    run, work, enter = entry_points(engine, image)
    fixed = (ctypes.c_void_p * 4)(*places, 0)
    return LoadedProgram(
        load_plan, image.threads, run, work, enter, constants, memory, spaces, places, fixed,
        engine, call_count=image.call_count,
    )  # fmt: skip


def entry_points(
    engine: Any, image: ProgramImage, *, timed: bool = False
) -> tuple[Run, Run | None, Run | None]:
    """Return the entry points `run`, `work` (with several threads) and `enter` (if present)."""

    def found(name: str, *kinds: Any) -> Run:
        return ctypes.CFUNCTYPE(None, *kinds)(engine.get_function_address(name))

    place = ctypes.c_void_p
    run = found("run", *[place] * (6 if timed else 5))
    work = found("work", place, place) if image.threads > 1 else None
    return run, work, found("enter", ctypes.py_object, place) if image.has_enter else None


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
