"""A child process that runs a Python module: it reads its standard input and prints lines.

It is a new process: a fork would end the threads of OpenBLAS, which another thread of this process
may wait for in numpy (`pthread_atfork`), forever.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from superopt.errors import SuperoptError

if TYPE_CHECKING:
    import subprocess

EXIT_TIMEOUT_S: Final = 10.0  # from a child's last line to its end
FAILURE_PREFIX: Final = "-"  # of a line with the reason of a failure
# An application that embeds Python is not started like Python.
CAN_RUN_CHILDREN: Final = (
    sys.platform == "linux"
    and Path(sys.executable or "").name.startswith("python")
    and not getattr(sys, "frozen", False)
)


class ChildFailed(SuperoptError):
    """A child process ended without a result."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class Child:
    """owner: the process that started it. reason: why it failed, if it said so. is_late: it was
    killed after a timeout."""

    process: subprocess.Popen[bytes]
    owner: int = field(default_factory=os.getpid)
    reason: str = ""
    is_late: threading.Event = field(default_factory=threading.Event)

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def send(self, data: bytes) -> None:
        """Write to its standard input, unless it has ended."""
        with suppress(BrokenPipeError):
            _pipe(self.process.stdin).write(data)
            _pipe(self.process.stdin).flush()

    def close_input(self) -> None:
        """End its standard input."""
        with suppress(BrokenPipeError):
            _pipe(self.process.stdin).close()

    def read_line(self, timeout_s: float) -> str:
        """Return the next line; empty at its end, or if it failed. It is killed after
        `timeout_s`."""

        def stop() -> None:
            self.is_late.set()
            self.process.kill()

        timer = threading.Timer(timeout_s, stop)
        timer.daemon = True
        timer.start()
        try:
            line = _pipe(self.process.stdout).readline().decode(errors="replace").strip()
        finally:
            timer.cancel()
        if not line.startswith(FAILURE_PREFIX):
            return line
        self.reason = line.removeprefix(FAILURE_PREFIX)
        return ""

    def check_result(self, timeout_s: float) -> None:
        """Wait for its end after its last line. Raises ChildFailed if it failed."""
        subprocess = import_module("subprocess")
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(EXIT_TIMEOUT_S)
        what = "background compilation"
        if self.is_late.is_set():
            raise ChildFailed(f"{what} timed out", f"it took longer than {timeout_s:.0f} s")
        if self.process.returncode != 0:
            why = self.reason or f"its process ended with {self.process.returncode}"
            raise ChildFailed(f"{what} failed", why)

    def close(self) -> None:
        """Kill it, and free what this process has of it."""
        if os.getpid() != self.owner:
            return  # this process was forked from its owner
        self.process.kill()
        self.close_input()
        _pipe(self.process.stdout).close()
        self.process.wait()


def _pipe(found: IO[bytes] | None) -> IO[bytes]:
    assert found is not None
    return found


def start_child(module: str) -> Child:
    """Run a Python module in a new process. Raises OSError if there is no memory for one."""
    subprocess = import_module("subprocess")  # which most processes do not need
    package = str(Path(__file__).resolve().parents[3])  # the folder that it is in
    folders = os.pathsep.join((package, *filter(None, sys.path)))
    return Child(
        subprocess.Popen(
            [sys.executable, "-P", "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": folders},
        )
    )
