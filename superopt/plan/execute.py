"""A program in this process: code, constants and memory, and calls of it."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from superopt.kernels.cpu import Machine, kernel_code, linked, object_code
from superopt.kernels.cpu_run import CLOCK_BYTES, run_text
from superopt.kernels.pool import Pool, started
from superopt.plan.build import Program

ALIGNED = 64


def _place_of_data() -> int:
    """Where numpy's arrays hold the address of their elements: bytes from the object's own; 0 where
    that cannot be seen. Reading it there takes a fifth of the time of asking for it."""
    if sys.implementation.name != "cpython":
        return 0
    probe = np.zeros(1)
    places = range(8, 48, 8)
    held = (ctypes.c_void_p.from_address(id(probe) + n).value == probe.ctypes.data for n in places)
    return next((n for n, found in zip(places, held, strict=True) if found), 0)


_DATA = _place_of_data()


def _address(a: np.ndarray) -> int:
    """Of an array's first element."""
    if _DATA:
        return ctypes.c_void_p.from_address(id(a) + _DATA).value or 0
    return int(a.ctypes.data)


@dataclass(slots=True)
class Code:
    """Code of a program. `run` takes tables of pointers; `engine` owns the code; places: where
    memory, constants and the first workspace are. Not to be called twice at a time."""

    program: Program
    threads: int
    run: Callable[..., None]
    work: Callable[..., None] | None
    constants: np.ndarray
    memory: np.ndarray
    workspaces: list[np.ndarray]
    places: tuple[int, int, int]
    engine: Any
    pool: Pool | None = field(default=None)

    def __call__(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        """Compute the outputs: contiguous arrays of the right types, all of them."""
        at = [_address(a) for a in (*inputs, *outputs)]
        self.run((ctypes.c_void_p * len(at))(*at), *self.places, self.state())

    def state(self) -> int:
        """What threads share; they are started here, once in each process."""
        if self.work is None:
            return 0
        if self.pool is None or self.pool.process != os.getpid():
            owns = (self.engine, self.constants, self.memory, self.workspaces)
            self.pool = started(self.work, [w.ctypes.data for w in self.workspaces[1:]], owns)
        return int(self.pool.state.ctypes.data)


def code(
    program: Program,
    machine: Machine,
    threads: int,
    folder: Path | None,
    constants: np.ndarray | None = None,
) -> Code:
    """The program as machine code. folder: where object files are kept. constants: the bytes of
    all of them, where these are known."""
    some = threads if any(c.chunks > 1 for c in program.calls) else 1
    engine, run, work = _functions(program, machine, some, folder)
    memory = aligned(program.constant_bytes)
    if constants is not None and len(constants) == len(memory):
        np.copyto(memory, constants)  # large pages are faster to read than a file's
    else:
        for held in program.constants:
            held.write(memory)
    constants = memory
    spaces = [aligned(program.workspace) for _ in range(some)]
    memory = aligned(program.memory)
    places = (memory.ctypes.data, constants.ctypes.data, spaces[0].ctypes.data)
    return Code(program, some, run, work, constants, memory, spaces, places, engine)


def _functions(
    program: Program, machine: Machine, threads: int, folder: Path | None, timed: bool = False
) -> tuple[Any, Callable[..., None], Callable[..., None] | None]:
    """The engine that owns the code, `run`, and on several threads `work`."""
    engine = linked(objects(program, machine, threads, folder, timed=timed), machine)
    kinds = [ctypes.c_void_p] * (6 if timed else 5)
    run = ctypes.CFUNCTYPE(None, *kinds)(engine.get_function_address("run"))
    if threads == 1:
        return engine, run, None
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
    return engine, run, kind(engine.get_function_address("work"))


@dataclass(slots=True)
class Timed:
    """A program that reads the clock after each call; seconds: of each of the last run's."""

    code: Code
    seconds: np.ndarray

    def __call__(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        c = self.code
        at = [_address(a) for a in (*inputs, *outputs)]
        words = CLOCK_BYTES // 8
        clock = np.zeros((len(self.seconds) + 1, words), np.int64)
        c.run((ctypes.c_void_p * len(at))(*at), *c.places, c.state(), clock.ctypes.data)
        passed = np.diff(clock, axis=0)
        self.seconds[:] = passed[:, 0] + 1e-9 * passed[:, 1]


def timed(c: Code, machine: Machine, folder: Path | None) -> Timed:
    """The same program, on the same memory, with the time of each of its calls."""
    engine, run, work = _functions(c.program, machine, c.threads, folder, timed=True)
    own = replace(c, engine=engine, run=run, work=work, pool=None)
    return Timed(own, np.zeros(len(c.program.calls)))


def objects(
    program: Program,
    machine: Machine,
    threads: int,
    folder: Path | None,
    *,
    shared: bool = False,
    timed: bool = False,
) -> list[bytes]:
    """The object files of a program: of its kernels, and of `run`, which calls them. shared: for a
    shared object. timed: does `run` read the clock after each?"""
    text = run_text(program.calls, threads, platform.machine().lower(), timed)
    kernels = [kernel_code(k, machine, folder, shared) for k in program.kernels.values()]
    return [*kernels, object_code(text, machine, folder, shared)]


def aligned(size: int) -> np.ndarray:
    """Zeros, from a multiple of 64 bytes on."""
    held = np.zeros(size + ALIGNED, np.uint8)
    begin = -held.ctypes.data % ALIGNED
    return held[begin : begin + size]
