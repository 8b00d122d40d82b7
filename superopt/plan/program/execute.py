"""Programs as machine code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from weakref import WeakValueDictionary

import numpy as np

from superopt.kernels.llvm.calls import references
from superopt.kernels.llvm.numpy_entry import entry_text, object_offsets
from superopt.kernels.llvm.program import CLOCK_BYTES, program_text
from superopt.kernels.runtime.cpu import Machine, kernel_compiler, object_code
from superopt.kernels.runtime.engine import link_objects
from superopt.plan.program.call_context import CallContext
from superopt.plan.program.constant_pool import PackedConstants
from superopt.plan.program.image import (
    LoadedProgram,
    ProgramImage,
    entry_points,
    load_image,
    pointer_table,
)
from superopt.plan.program.pack_constants import constant_numbers, pack_constants
from superopt.plan.program.program import Program


def load_program(
    program: Program,
    machine: Machine,
    threads: int,
    folder: Path | None,
    release: Callable[[], None] | None = None,
) -> LoadedProgram:
    """Return the program as loaded machine code. folder: the cache of object files. release:
    see `pack_constants`."""
    made = start_image(program, machine, threads, folder)
    held = pack_program_constants(program, release)
    return load_image(made(), held, machine, lambda: program)


def pack_program_constants(
    program: Program,
    release: Callable[[], None] | None = None,
) -> PackedConstants:
    """Return all constants as kernels read them. release: see `pack_constants`. Raises
    NotImplementedError, as for a missing kernel, where a constant does not fit."""
    try:
        return pack_constants(program.constants, program.constant_bytes, release)
    except (LookupError, TypeError, ValueError) as e:
        raise NotImplementedError(f"a constant does not fit what its kernel reads: {e}") from e


def start_image(
    program: Program, machine: Machine, threads: int, folder: Path | None
) -> Callable[[], ProgramImage]:
    """Return what waits for the machine code of the program, which another thread compiles."""
    some = used_threads(program, threads)
    offsets = object_offsets()

    def compile_entry() -> bytes:
        assert offsets is not None
        given = [r.position for r in references(program.calls) if r.region == "argument"]
        given += [] if program.symbolic is None else [program.symbolic.argument]
        return object_code(entry_text(max(given, default=-1) + 1, *offsets), machine, folder)

    entry = () if offsets is None else (compile_entry,)
    wait = _compile_in_thread((*_object_compilers(program, machine, some, folder), *entry))
    sizes = program.constant_bytes, program.memory_bytes, program.workspace_bytes
    return lambda: ProgramImage(wait(), some, bool(entry), *sizes, len(program.calls))


def _compile_in_thread(
    compilers: Iterable[Callable[[], bytes]],
) -> Callable[[], tuple[bytes, ...]]:
    """Return what waits for the results of functions, which one thread calls in order while this
    one makes the next function, or does something else."""
    pool = ThreadPoolExecutor(max_workers=1)
    try:
        made = [pool.submit(copy_context().run, each) for each in compilers]
    finally:
        pool.shutdown(wait=False)  # its thread ends after the last call
    return lambda: tuple(each.result() for each in made)


def used_threads(program: Program, threads: int) -> int:
    """Return 1 if no kernel of a program has several chunks; else `threads`."""
    return threads if any(c.chunks > 1 or c.chunk_word is not None for c in program.calls) else 1


@dataclass(slots=True)
class TimedProgram:
    """A program that reads the clock after each call. context: that of all runs. seconds: the time
    of each call in the last run."""

    code: LoadedProgram
    context: CallContext
    seconds: np.ndarray

    def __call__(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        c, context = self.code, self.context
        words = CLOCK_BYTES // 8
        clock = np.zeros((len(self.seconds) + 1, words), np.int64)
        table, state = pointer_table((*inputs, *outputs)), c.thread_state(context)
        c.run(table, *context.addresses, state, clock.ctypes.data)
        passed = np.diff(clock, axis=0)
        self.seconds[:] = passed[:, 0] + 1e-9 * passed[:, 1]


def time_calls(c: LoadedProgram, machine: Machine, folder: Path | None) -> TimedProgram:
    """Return the same program with a timer for each call."""
    p = c.program
    made = object_files(p, machine, c.threads, folder, timed=True)
    engine = link_objects(made, machine)
    sizes = p.constant_bytes, p.memory_bytes, p.workspace_bytes
    run, work, _ = entry_points(engine, ProgramImage((), c.threads, False, *sizes), timed=True)
    own = replace(
        c, engine=engine, run=run, work=work, enter=None, idle=[], contexts=WeakValueDictionary()
    )
    return TimedProgram(own, own.make_context(), np.zeros(len(p.calls)))


def object_files(
    program: Program,
    machine: Machine,
    threads: int,
    folder: Path | None,
    *,
    timed: bool = False,
) -> list[bytes]:
    """Return the object files of a program: its kernels, and `run`, which calls them. timed: `run`
    reads the clock after each call."""
    return [each() for each in _object_compilers(program, machine, threads, folder, timed=timed)]


def _object_compilers(
    program: Program,
    machine: Machine,
    threads: int,
    folder: Path | None,
    *,
    timed: bool = False,
) -> Iterator[Callable[[], bytes]]:
    """Yield functions that return the object files. The texts of kernels with symbolic sizes are
    generated here: their decisions are guards of the caller's sizes."""
    for k in program.kernels.values():
        yield kernel_compiler(k, machine, folder)
    table = constant_numbers(program.constants)
    words = program.symbolic.argument if program.symbolic is not None else 0
    text = program_text(program.calls, threads, machine.system, timed, table, words)
    yield partial(object_code, text, machine, folder)
