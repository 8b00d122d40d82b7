"""Programs as machine code."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from superopt.kernels.calls import references
from superopt.kernels.cpu import Machine, kernel_code, object_code
from superopt.kernels.cpu_run import CLOCK_BYTES, run_text
from superopt.kernels.engine import linked
from superopt.kernels.enter import enter_text, places
from superopt.plan.build import Program
from superopt.plan.constants import Constants
from superopt.plan.image import Code, Image, functions, ready, table
from superopt.plan.pack_constants import pack_constants, split_constants, table_of


def code(
    program: Program,
    machine: Machine,
    threads: int,
    folder: Path | None,
    constants: np.ndarray | None = None,
    release: Callable[[], None] | None = None,
) -> Code:
    """Return the program as loaded machine code. folder: the cache of object files. constants: the
    bytes of all packed constants, if known. release: see `pack_constants`."""
    made = image(program, machine, threads, folder)
    held = _packed(program, constants, release)
    return ready(made, held, machine, lambda: program)


def _packed(
    program: Program, known: np.ndarray | None, release: Callable[[], None] | None
) -> Constants:
    """Return all constants as kernels read them. Raises NotImplementedError, as for a missing
    kernel, where a constant does not fit."""
    size = program.constant_bytes
    if known is not None and len(known) == size:
        return split_constants(program.constants, known)
    try:
        return pack_constants(program.constants, size, release)
    except (LookupError, TypeError, ValueError) as e:
        raise NotImplementedError(f"a constant does not fit what its kernel reads: {e}") from e


def image(program: Program, machine: Machine, threads: int, folder: Path | None) -> Image:
    """Return the machine code of the program, and what it needs."""
    some = threads if any(c.chunks > 1 for c in program.calls) else 1
    made = objects(program, machine, some, folder)
    if (at := places()) is not None:
        given = (r.at for r in references(program.calls) if r.place == "argument")
        made.append(object_code(enter_text(max(given, default=-1) + 1, *at), machine, folder))
    sizes = program.constant_bytes, program.memory, program.workspace
    return Image(tuple(made), some, at is not None, *sizes)


@dataclass(slots=True)
class Timed:
    """A program that reads the clock after each call. seconds: the time of each call in the last
    run."""

    code: Code
    seconds: np.ndarray

    def __call__(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        c = self.code
        words = CLOCK_BYTES // 8
        clock = np.zeros((len(self.seconds) + 1, words), np.int64)
        c.run(table((*inputs, *outputs)), *c.places, c.state(), clock.ctypes.data)
        passed = np.diff(clock, axis=0)
        self.seconds[:] = passed[:, 0] + 1e-9 * passed[:, 1]


def timed(c: Code, machine: Machine, folder: Path | None) -> Timed:
    """Return the same program on the same memory with a timer for each call."""
    p = c.program
    made = objects(p, machine, c.threads, folder, timed=True)
    engine = linked(made, machine)
    sizes = p.constant_bytes, p.memory, p.workspace
    run, work, _ = functions(engine, Image((), c.threads, False, *sizes), timed=True)
    own = replace(c, engine=engine, run=run, work=work, enter=None, pool=None)
    return Timed(own, np.zeros(len(p.calls)))


def objects(
    program: Program,
    machine: Machine,
    threads: int,
    folder: Path | None,
    *,
    shared: bool = False,
    timed: bool = False,
) -> list[bytes]:
    """Return the object files of a program: its kernels, and `run`, which calls them. shared: for a
    shared object, whose constants are one block of memory. timed: `run` reads the clock after each
    call."""
    table = None if shared else table_of(program.constants)
    text = run_text(program.calls, threads, platform.machine().lower(), timed, table)
    kernels = [kernel_code(k, machine, folder, shared) for k in program.kernels.values()]
    return [*kernels, object_code(text, machine, folder, shared)]
