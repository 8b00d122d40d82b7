"""Run onnx's checker in a forked child.

The checker is C++ code that trusts its input in places: an `axis` out of range crashes it, an
Einsum equation can make it loop, a `num_outputs` can exhaust memory. The child has limits on time
and memory, and a model that it does not survive is rejected. Without fork() the checker runs in
this process.
"""

import contextlib
import faulthandler
import math
import os
import select
import signal
import sys
import time
import warnings
from dataclasses import dataclass
from typing import Final

import onnx
import onnx.checker
import onnx.shape_inference

from superopt import guard
from superopt.onnx_io.check.declarations import type_problem
from superopt.onnx_io.read.protos import declared_types

if sys.platform != "win32":
    import resource

OUT_OF_MEMORY: Final = "It takes more memory than there is."
_EXTRA_MEMORY_BYTES: Final = 1 << 30  # bytes on top of what the process has already
WALL_TIME_FACTOR: Final = 10  # times the limit of processor time, on a machine that is busy


@dataclass(frozen=True, slots=True)
class CheckFailure:
    """Why a model is rejected: the checker's message, or how the checker ended without one."""

    text: str
    from_checker: bool = True


def check_in_fork(data: bytes, seconds: int) -> CheckFailure | None:
    """Return what `onnx.checker.check_model(full_check=True)` reports for this ModelProto, or None.

    It also reports inferred types that no tensor can have. `seconds` limits processor time. Raises
    OutOfTime if the time of the call ends first.
    """
    if not hasattr(os, "fork"):
        text = check_in_process(data)
        return CheckFailure(text) if text else None
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        # The child of a process with threads may only do what needs none of their locks: it
        # calls into onnx, writes to a pipe and is gone.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        _run_child(data, seconds, reader, writer)
    os.close(writer)
    status = None
    limit = time.monotonic() + seconds * WALL_TIME_FACTOR
    end = min(limit, guard.current_guard().deadline)
    try:
        said = _read_until(reader, end)
        if said is not None:
            _, status = os.waitpid(child, 0)
    finally:
        os.close(reader)
        if status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
    if said is None and end < limit:
        raise guard.out_of_time_error("checking a model")
    if said is None:
        return CheckFailure(
            f"it takes more than {seconds * WALL_TIME_FACTOR} seconds", from_checker=False
        )
    if status == 0:
        return CheckFailure(said.decode(errors="replace")) if said else None
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if number in (signal.SIGXCPU, signal.SIGKILL):
        return CheckFailure(
            f"it takes more than {seconds} seconds of processor time", from_checker=False
        )
    name = signal.Signals(number).name if number else f"exit {os.waitstatus_to_exitcode(status)}"
    return CheckFailure(f"it makes onnx's checker crash ({name})", from_checker=False)


def check_in_process(data: bytes) -> str:
    """Run the checker in this process; return its message, or an empty string."""
    try:
        onnx.checker.check_model(data)
        inferred = onnx.shape_inference.infer_shapes(data, check_type=True, strict_mode=True)
        # Not in subgraphs: a branch for other sizes, which is never taken, may be impossible.
        for kind, owner in declared_types(inferred, subgraphs=False):
            if problem := type_problem(kind):
                return f"The inferred type of {owner} is not possible: {problem}."
    except MemoryError:
        return OUT_OF_MEMORY
    except UnicodeDecodeError:
        return "Some name or text in it is not UTF-8."
    except Exception as error:  # of a dozen types, all of which mean no
        return str(error) or type(error).__name__
    return ""


def limit_resources(data: bytes, seconds: int) -> None:
    """Limit this process to the seconds and memory allowed for checking `data`."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    end = math.ceil(time.process_time()) + seconds
    end = end if most == resource.RLIM_INFINITY else min(end, most)
    resource.setrlimit(resource.RLIMIT_CPU, (end, most))
    with contextlib.suppress(OSError, ValueError):
        with open("/proc/self/statm", "rb") as statm:
            size = int(statm.read().split()[0]) * resource.getpagesize()
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (size + _EXTRA_MEMORY_BYTES + 20 * len(data), most))


def _run_child(data: bytes, seconds: int, reader: int, writer: int) -> None:
    """Check, write the message, and exit without cleanup; never returns."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # our parent's to handle
        signal.signal(signal.SIGXCPU, signal.SIG_DFL)  # which ends it
        faulthandler.disable()
        os.close(reader)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)  # the checker prints
        os.dup2(nowhere, 2)
        limit_resources(data, seconds)
        text = check_in_process(data).encode(errors="replace")
        while text:
            text = text[os.write(writer, text) :]
        code = 0
    finally:
        os._exit(code)


def _read_until(reader: int, deadline: float) -> bytes | None:
    """Read a pipe until its other end closes; return None after the deadline."""
    parts: list[bytes] = []
    while (left := deadline - time.monotonic()) > 0:
        if not select.select([reader], [], [], left)[0]:
            break
        part = os.read(reader, 1 << 16)
        if not part:
            return b"".join(parts)
        parts.append(part)
    return None
