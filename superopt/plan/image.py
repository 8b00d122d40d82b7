"""A program in this process: code, constants and memory, and calls of it. Nothing here knows how it
was made, so that a program that is kept whole is ready soon."""

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
PAGE = 1 << 21  # bytes of a large page
LARGE = PAGE // 2
Run = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Image:
    """What a program is made of once it is compiled. objects: files of machine code, with `run`;
    with `work`, on several threads; and where Python's objects are as expected with `enter`.
    constants, memory, workspace: bytes."""

    objects: tuple[bytes, ...]
    threads: int
    enters: bool
    constants: int
    memory: int
    workspace: int


@dataclass(slots=True)
class Code:
    """Code of a program. `run` takes a table of pointers and places, `enter` a tuple of arrays and
    a table of places (`fixed`); `engine` owns the code; places: where memory, the table of
    constants and the first workspace are; planned: gives the program. Not to be called twice at a
    time."""

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
        """That only it holds, but for machine code: constants may be shared."""
        return sum(a.nbytes for a in (self.memory, *self.workspaces))

    def __call__(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        """Compute the outputs: contiguous arrays of the right types, all of them."""
        self.call((*inputs, *outputs))

    def call(self, arrays: tuple[np.ndarray, ...]) -> None:
        """The same; inputs, then outputs."""
        if self.enter is None:
            self.run(table(arrays), *self.places, self.state())
            return
        if self.work is not None:
            self.fixed[3] = self.state()
        self.enter(arrays, self.fixed)

    def state(self) -> int:
        """What threads share; they are started here, once in each process."""
        if self.work is None:
            return 0
        if self.pool is None or self.pool.process != os.getpid():
            owns = (self.engine, self.constants, self.memory, self.workspaces)
            self.pool = started(self.work, [w.ctypes.data for w in self.workspaces[1:]], owns)
        return int(self.pool.state.ctypes.data)


def table(arrays: Sequence[np.ndarray]) -> Any:
    """Where these arrays' elements are."""
    return (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))


def ready(
    image: Image, constants: Constants, machine: Machine, planned: Callable[[], Program]
) -> Code:
    """The program, to be called."""
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
    """`run`, on several threads `work`, and `enter` where there is one."""

    def found(name: str, *kinds: Any) -> Run:
        return ctypes.CFUNCTYPE(None, *kinds)(engine.get_function_address(name))

    place = ctypes.c_void_p
    run = found("run", *[place] * (6 if timed else 5))
    work = found("work", place, place) if image.threads > 1 else None
    return run, work, found("enter", ctypes.py_object, place) if image.enters else None


def aligned(size: int) -> np.ndarray:
    """Zeros, from a multiple of 64 bytes on; many of them in large pages, where the system has
    them for who asks: of small ones, which lie anywhere, no processor foresees the next. Raises
    MemoryError where there are not so many, or the call may not use them."""
    guard.admit(size, "a program's constants or memory")
    if size < LARGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        held = np.zeros(size + ALIGNED, np.uint8)
        begin = -held.ctypes.data % ALIGNED
        return held[begin : begin + size]
    try:
        pages = mmap.mmap(-1, size + PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # a fork's own
    except OSError as e:
        raise MemoryError(f"no {size} bytes: {e.strerror}") from None
    with contextlib.suppress(OSError):  # a system without them
        pages.madvise(mmap.MADV_HUGEPAGE)
    held = np.frombuffer(pages, np.uint8)
    begin = -held.ctypes.data % PAGE
    return held[begin : begin + size]
