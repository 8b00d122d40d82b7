"""A child process that runs a Python module: it reads its standard input and prints lines.

It is a new process: a fork would end the threads of OpenBLAS, which another thread of this process
may wait for in numpy (`pthread_atfork`), forever.

At the end of this process a child may go on by itself, to write to the disk cache what later
processes need. Of all processes with this cache folder, one may leave a child at a time: it has the
lock of a file there, which both have open.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from superopt.cost.cache_folders import default_folder
from superopt.errors import SuperoptError
from superopt.kernels.runtime.file_cache import ensure_private

if TYPE_CHECKING:
    import subprocess

EXIT_TIMEOUT_S: Final = 10.0  # from a child's last line to its end
FAILURE_PREFIX: Final = "-"  # of a line with the reason of a failure
LOCK_NAME: Final = "child.lock"  # of the file in the cache folder that a child locks which is left
LEFT_CPU_SECONDS: Final = 120  # of processor time, after which a child that is left is ended
LEFT_NICENESS: Final = 10
PIPE_BYTES: Final = 1 << 20  # that may wait to be read
_READ_BYTES = 4096
# An application that embeds Python is not started like Python.
CAN_RUN_CHILDREN: Final = (
    sys.platform == "linux"
    and Path(sys.executable or "").name.startswith("python")
    and not getattr(sys, "frozen", False)
)


def _new_event() -> int:
    return os.eventfd(0, os.EFD_CLOEXEC)


class ChildFailed(SuperoptError):
    """A child process ended without a result."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class Child:
    """lock_file: a descriptor that it has, too, of the file to lock before it is left; None: it
    cannot be left. owner: the process that started it. reason: why it failed, if it said so.
    is_late: it was killed after a timeout. is_left: it goes on by itself. last_message: returns
    what it reads when it is left. wake: a descriptor that ends the wait for a line. received: of
    its output, not returned yet."""

    process: subprocess.Popen[bytes]
    lock_file: int | None = None
    owner: int = field(default_factory=os.getpid)
    reason: str = ""
    is_late: threading.Event = field(default_factory=threading.Event)
    is_left: threading.Event = field(default_factory=threading.Event)
    last_message: Callable[[], bytes] = bytes
    wake: int = field(default_factory=_new_event)
    received: bytearray = field(default_factory=bytearray)

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
        """Return the next line; empty at its end, if it failed, or is left. It is killed after
        `timeout_s`."""
        raw = self._read_bytes(time.monotonic() + timeout_s)
        line = raw.decode(errors="replace").strip()
        if not line.startswith(FAILURE_PREFIX):
            return line
        self.reason = line.removeprefix(FAILURE_PREFIX)
        return ""

    def _read_bytes(self, end: float) -> bytes:
        select = import_module("select")
        poll, output = select.poll(), _pipe(self.process.stdout).fileno()
        for each in (output, self.wake):
            poll.register(each, select.POLLIN)
        while b"\n" not in self.received:
            ready = poll.poll(1e3 * max(end - time.monotonic(), 0.0))
            if self.is_left.is_set():
                return b""
            if not ready:
                self.is_late.set()
                self.process.kill()
                end += EXIT_TIMEOUT_S  # it ends now
            elif any(each == output for each, _ in ready):
                if not (some := os.read(output, _READ_BYTES)):
                    break
                self.received += some
        size = self.received.find(b"\n") + 1 or len(self.received)
        line = bytes(self.received[:size])
        del self.received[:size]
        return line

    def leave(self) -> None:
        """Let it go on after the end of this process, or end it if another one does so already, the
        cache folder is gone, or the child has no limit."""
        if self._take_lock() and self._set_limits():
            self.is_left.set()
        else:
            self.process.kill()
        os.eventfd_write(self.wake, 1)

    def _set_limits(self) -> bool:
        """Limit what it takes by itself, and send its last message. False if that fails."""
        resource: Any = import_module("resource")
        pid, limit = self.process.pid, (LEFT_CPU_SECONDS, LEFT_CPU_SECONDS)
        try:
            resource.prlimit(pid, resource.RLIMIT_CPU, limit)
            os.setpriority(os.PRIO_PROCESS, pid, LEFT_NICENESS)
            os.set_blocking(_pipe(self.process.stdin).fileno(), False)
            self.send(self.last_message())
        except OSError:  # also BlockingIOError: it has not read what it was sent before
            return False
        return True

    def _take_lock(self) -> bool:
        """Lock the file for this process and the child; return whether no other ones have it."""
        if self.lock_file is None or not os.fstat(self.lock_file).st_nlink:
            return False
        fcntl: Any = import_module("fcntl")
        try:
            fcntl.flock(self.lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

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
        """Kill it unless it is left, and free what this process has of it."""
        if os.getpid() != self.owner:
            return  # this process was forked from its owner
        if self.is_left.is_set():
            self.process.returncode = 0  # nobody waits for it
        else:
            self.process.kill()
        self.close_input()
        _pipe(self.process.stdout).close()
        self.process.wait()
        held, self.wake, self.lock_file = (self.wake, self.lock_file), -1, None
        for each in held:
            if each not in (None, -1):
                os.close(each)


def _pipe(found: IO[bytes] | None) -> IO[bytes]:
    assert found is not None
    return found


def start_child(module: str) -> Child:
    """Run a Python module in a new process. Raises OSError if there is no memory for one."""
    subprocess = import_module("subprocess")  # which most processes do not need
    package = str(Path(__file__).resolve().parents[3])  # the folder that it is in
    folders = os.pathsep.join((package, *filter(None, sys.path)))
    lock_file = _open_lock_file()
    try:
        started = subprocess.Popen(
            [sys.executable, "-P", "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": folders},
            pass_fds=() if lock_file is None else (lock_file,),
            pipesize=PIPE_BYTES,
        )
    except OSError:
        if lock_file is not None:
            os.close(lock_file)
        raise
    return Child(started, lock_file)


def _open_lock_file() -> int | None:
    """Return a descriptor of the file to lock; None if there is no cache folder."""
    folder = default_folder()
    if not ensure_private(folder):
        return None
    with suppress(OSError):
        how = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(folder / LOCK_NAME, how, 0o600)
    return None
