"""Compile a model in a child process, for calls in its parent (`specialize.py`).

    python -m superopt.compilation.model.compile_child < messages

Each message is a pickle. The first is (open, arguments, is_urgent): what opens the model, and
whether a call waits for that, or for the first program; else the child has a low priority. The
second is (sizes, work, ranges, states, is_urgent, arrays): the sizes, a `Work`, the ranges of the
sizes of calls, the states that programs keep in place, and the inputs of a call or None. A child
that waits for it too long ends. Results are in the disk cache; a line of the output is the
processor time so far in seconds, or why there are no more. After each the parent sends the ranges
of the sizes of calls until then; also when it ends, and this process goes on (child_process.py).
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Final, Literal

from superopt.compilation.frontend.input_arrays import sorted_sizes
from superopt.compilation.model.control_flow.compile_if import MAX_EAGER_IF_DEPTH
from superopt.compilation.model.control_flow.dynamic_if import DynamicIf, select_inputs
from superopt.compilation.model.flow_programs import control_flow_variant
from superopt.compilation.model.states.state_programs import state_programs
from superopt.compilation.runtime.child_process import FAILURE_PREFIX
from superopt.errors import SuperoptError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np

    from superopt.compilation.frontend.input_arrays import Sizes
    from superopt.compilation.model.control_flow.dynamic_if import ControlFlow
    from superopt.compilation.model.executable import Executable
    from superopt.compilation.model.shape_policy import SizeRanges
    from superopt.compilation.model.states.state_programs import StateNames

CHILD_NICENESS: Final = 10
MAX_WAIT_S: Final = 60.0  # for the first call
# A class of sizes, then those of other levels, or a program for these sizes if there is none; a
# program for these sizes; programs for all levels of sizes that only a run gives.
Work = Literal["class", "fixed", "counts"]


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's to handle
    try:
        open_model, arguments, is_urgent = _read_message()
        priority = os.getpriority(os.PRIO_PROCESS, 0)
        if not is_urgent:
            _lower_priority(priority)
        exe = open_model(*arguments)
        _ = exe.compiler  # is loaded
        timer = threading.Timer(MAX_WAIT_S, os._exit, (0,))
        timer.start()
        try:
            sizes, work, ranges, states, is_urgent, arrays = _read_message()
        except EOFError:  # the parent needs nothing
            return 0
        finally:
            timer.cancel()
        if not is_urgent:
            _lower_priority(priority)
        if states:
            compiled = _compile_states(exe, sizes, states)
        elif arrays is not None and (flow := _any_size_flow(exe)) is not None:
            compiled = _compile_call(flow, arrays, ranges)
        else:
            compiled = _compile(exe, sizes, work, ranges)
        for seconds in compiled:
            is_read = _print_line(str(seconds))
            _lower_priority(priority)
            try:
                ranges.update(_read_message())
            except EOFError:
                if not is_read:  # the parent was killed
                    return 0
    except Exception as e:  # of any type; the parent reports it
        print(" ".join(f"{FAILURE_PREFIX}{type(e).__name__}: {e}".split()))
        return 1
    return 0


def _print_line(text: str) -> bool:
    """Print a line; return whether the parent may read it. Otherwise others go nowhere."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False
    return True


def _read_message() -> Any:
    return pickle.load(sys.stdin.buffer)


def _lower_priority(normal: int) -> None:
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, normal + CHILD_NICENESS)


def _compile_states(exe: Executable, key: Sizes, states: StateNames) -> Iterator[float]:
    """Compile a class that keeps these states in place. Yield as `_compile`."""
    begin, sizes = time.process_time(), dict(key)
    programs = state_programs(exe, states)
    if programs.find(sizes) is None and not programs.compile(exe, sizes):
        raise NotImplementedError("no program keeps these states in place")
    yield time.process_time() - begin


def _compile(exe: Executable, key: Sizes, work: Work, ranges: SizeRanges) -> Iterator[float]:
    """Yield the seconds of processor time after each program."""
    begin, sizes, classes = time.process_time(), dict(key), exe.size_classes
    made, compiler = None, exe.compiler
    is_known = classes.variant(sizes) is not None  # reads the classes that are on disk
    if work == "class" and is_known:
        made = classes.find(sizes)
    elif work == "class" and not compiler.prefers_fixed_sizes(sizes):
        made = classes.compile(compiler, sizes)
    elif work == "counts":
        compiler = compiler.with_all_counts()
        is_known = is_known and classes.compile(compiler, sizes) is not None
    if made is None and not (work == "counts" and is_known):
        exe.store_cached(key, compiler.compile_variant(sizes))
    yield time.process_time() - begin
    if made is None:
        return
    classes.add(made)
    for more in made.next_sizes:
        if classes.find(more) is None and (then := classes.compile(compiler, more)) is not None:
            classes.add(then)
            yield time.process_time() - begin
    for _ in compiler.compile_levels(classes, sizes, ranges):
        yield time.process_time() - begin


def _any_size_flow(exe: Executable) -> ControlFlow | None:
    """Return the programs at a model's If or Loop, whose calls compile what they need; None of a
    model without."""
    exe.shape_policy.specialize = "never"  # nothing runs in the background of this process
    found = control_flow_variant(exe, "compile")
    exe.size_classes.any_sizes = found
    return exe.size_classes.any_control_flow


def _compile_call(
    flow: ControlFlow, arrays: Sequence[np.ndarray], ranges: SizeRanges
) -> Iterator[float]:
    """Compile the parts that a call runs, by running it; then the other branches, and classes for
    other sizes. Yield the seconds of processor time after each program. arrays: the inputs of the
    call. ranges: of the sizes of calls."""
    begin = time.process_time()
    feeds = dict(zip(flow.input_names, arrays, strict=True))
    flow.run_programs(feeds)
    yield time.process_time() - begin
    for part, given in _all_parts(flow, feeds, MAX_EAGER_IF_DEPTH):
        with contextlib.suppress(SuperoptError):  # a branch may be invalid where it is not taken
            part.run(given)
            yield time.process_time() - begin
            yield from (time.process_time() - begin for _ in _compile_levels(part, given, ranges))


def _all_parts(
    flow: ControlFlow, feeds: dict[str, Any], depth: int
) -> Iterator[tuple[Executable, dict[str, Any]]]:
    """Yield all parts with their inputs, also branches that are not taken, down to this depth."""
    if not depth:
        return
    if isinstance(flow, DynamicIf):
        values = flow.run_prefix(feeds)
        first = [] if flow.prefix is None else [(flow.prefix, select_inputs(flow.prefix, feeds))]
        arms = ((arm, select_inputs(arm, values)) for arm in flow.branches.values())
        parts: Iterator[tuple[Executable, dict[str, Any]]] = iter((*first, *arms))
    else:
        parts = flow.selected_executables(feeds)
    for part, given in parts:
        yield part, given
        if (inner := part.size_classes.any_control_flow) is not None:
            yield from _all_parts(inner, given, depth - 1)


def _compile_levels(
    part: Executable, given: dict[str, Any], ranges: SizeRanges
) -> Iterator[object]:
    """Compile classes of a part for sizes of other levels; yield each."""
    sizes = part.infer_sizes(part.input_arrays(given))
    if not part.size_classes.classes or not sorted_sizes(sizes):
        return
    known = {name: ranges.get(name, (n, n)) for name, n in sizes.items()}
    yield from part.compiler.compile_levels(part.size_classes, sizes, known)


if __name__ == "__main__":
    sys.exit(main())
