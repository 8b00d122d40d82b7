"""Compile a model in a child process, for a call in its parent (`specialize.py`).

    python -m superopt.compilation.model.compile_child < request

The request is a pickle of ((open, arguments), sizes, work, ranges, states): what opens the model,
the sizes, a `Work`, the ranges of the sizes of calls, and the states that programs keep in place.
Results are in the disk cache; a line of the output is the processor time so far in seconds, or why
there are no more.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
import time
from typing import TYPE_CHECKING, Final, Literal

from superopt.compilation.model.states.state_programs import state_programs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from superopt.compilation.frontend.input_arrays import Sizes
    from superopt.compilation.model.executable import Executable
    from superopt.compilation.model.shape_policy import SizeRanges
    from superopt.compilation.model.states.state_programs import StateNames

CHILD_NICENESS: Final = 10
# A class of sizes, then those of other levels, or a program for these sizes if there is none; a
# program for these sizes; programs for all levels of sizes that only a run gives.
Work = Literal["class", "fixed", "counts"]


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's to handle
    with contextlib.suppress(OSError):
        os.nice(CHILD_NICENESS)
    try:
        (open_model, arguments), sizes, work, ranges, states = pickle.load(sys.stdin.buffer)
        exe = open_model(*arguments)
        compiled = (
            _compile_states(exe, sizes, states) if states else _compile(exe, sizes, work, ranges)
        )
        for seconds in compiled:
            print(seconds, flush=True)
    except Exception as e:  # of any type; the parent reports it
        print(" ".join(f"-{type(e).__name__}: {e}".split()))
        return 1
    return 0


def _compile_states(exe: Executable, key: Sizes, states: StateNames) -> Iterator[float]:
    """Compile a class that keeps these states in place. Yield as `_compile`."""
    begin, sizes = time.process_time(), dict(key)
    programs = state_programs(exe, states)
    if programs.find(sizes) is None:
        programs.compile(exe, sizes)
    yield time.process_time() - begin


def _compile(exe: Executable, key: Sizes, work: Work, ranges: SizeRanges) -> Iterator[float]:
    """Yield the seconds of processor time after each program."""
    begin, sizes, classes = time.process_time(), dict(key), exe.size_classes
    made, compiler = None, exe.compiler
    is_known = classes.variant(sizes) is not None  # reads the classes that are on disk
    if work == "class":
        made = classes.find(sizes) if is_known else classes.compile(compiler, sizes)
    elif work == "counts":
        compiler = compiler.with_all_counts()
        is_known = is_known and classes.compile(compiler, sizes) is not None
    if made is None and not (work == "counts" and is_known):
        exe.store_cached(key, compiler.compile_variant(sizes))
    yield time.process_time() - begin
    if made is not None:
        classes.add(made)
        for _ in compiler.compile_levels(classes, sizes, ranges):
            yield time.process_time() - begin


if __name__ == "__main__":
    sys.exit(main())
