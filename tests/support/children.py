"""Running a function in a forked child: to measure its memory, or because it may crash."""

import gc
import json
import os
import signal
import warnings
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Crashed(Exception):
    """The child died of a signal."""


def in_child(function: Callable[[], T], seconds: int = 60) -> T:
    """`function()`, in a child; its result must be plain data.

    Raises Crashed if the child dies, RuntimeError if the function raises.
    """
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # pytest may have threads
        child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(reader)
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 1)
            os.dup2(nowhere, 2)
            signal.alarm(seconds)
            try:
                said: tuple[bool, object] = (True, function())
            except Exception as error:
                said = (False, f"{type(error).__name__}: {error}")
            with os.fdopen(writer, "w") as pipe:
                json.dump(said, pipe)
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        answer = pipe.read()
    _, status = os.waitpid(child, 0)
    if status:
        raise Crashed(f"status {os.waitstatus_to_exitcode(status)}")
    good, value = json.loads(answer)
    if not good:
        raise RuntimeError(value)
    return value  # type: ignore[no-any-return]


def peak_rss_of(function: Callable[[], object]) -> int:
    """Bytes of resident memory, pages of mapped files included, that `function()` adds at most.

    Measured in a child process on Linux: its high-water mark is set back before the call.
    """

    def measured() -> int:
        gc.collect()
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
        before = _status("VmRSS")
        function()
        return _status("VmHWM") - before

    return in_child(measured, seconds=600)


def _status(key: str) -> int:
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith(key):
                return int(line.split()[1]) * 1024
    raise KeyError(key)
