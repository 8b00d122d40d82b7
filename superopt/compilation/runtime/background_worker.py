"""Background work of a process, one job at a time.

A thread takes the jobs and ends when there are none. Work that would hold the interpreter for long
runs in a child process (`child_lines`). The child has a low priority and hands its results over in
files, so calls do not wait for the GIL, and the memory that compilation leaves behind goes with the
child. It is a new process: a fork would end the threads of OpenBLAS, which another thread of this
process may wait for in numpy (`pthread_atfork`), forever.
"""

from __future__ import annotations

import atexit
import ctypes
import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

from superopt.errors import SuperoptError

if TYPE_CHECKING:
    import subprocess

LOG = logging.getLogger("superopt.compile")
EXIT_TIMEOUT_S: Final = 10.0  # the end of the process waits so long for a job
INTERRUPT_DELAY_S: Final = 0.2  # until a thread is interrupted
MAX_QUEUED_JOBS: Final = 8  # waiting jobs
# An application that embeds Python is not started like Python.
CAN_RUN_CHILDREN: Final = (
    sys.platform == "linux"
    and Path(sys.executable or "").name.startswith("python")
    and not getattr(sys, "frozen", False)
)


class ChildFailed(SuperoptError):
    """A child process ended without a result."""


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """owner: whose jobs can be waited for; run: must not raise."""

    owner: int
    run: Callable[[], None]


@dataclass(slots=True)
class Worker:
    """The jobs of this process. child: the process that works on one now."""

    condition: threading.Condition = field(default_factory=threading.Condition)
    jobs: deque[Job] = field(default_factory=deque)
    current: Job | None = None
    thread: threading.Thread | None = None
    child: subprocess.Popen[bytes] | None = None
    stopping: bool = False

    def submit(self, job: Job) -> bool:
        """Add a job. False if too many wait already, or the process ends."""
        with self.condition:
            if self.stopping or len(self.jobs) >= MAX_QUEUED_JOBS:
                return False
            self.jobs.append(job)
            if self.thread is None:
                self.thread = threading.Thread(target=self._work, name="superopt", daemon=True)
                self.thread.start()
            return True

    def wait(self, owner: int, timeout: float | None = None) -> bool:
        """Wait until no job of this owner is left. False on timeout, in seconds."""
        with self.condition:
            return self.condition.wait_for(lambda: not self._has_job(owner), timeout)

    def _has_job(self, owner: int) -> bool:
        return any(job.owner == owner for job in (*self.jobs, self.current) if job is not None)

    def _work(self) -> None:
        while True:
            with self.condition:
                self.current = None
                self.condition.notify_all()
                if not self.jobs or self.stopping:
                    self.thread = None
                    return
                self.current = self.jobs.popleft()
            try:
                self.current.run()
            except SystemExit:  # `stop`
                self.stopping = True
            except Exception:  # a job must not raise; others still run
                LOG.exception("background compilation failed")

    def stop(self) -> None:
        """End the work before the interpreter exits: a thread inside LLVM would crash then."""
        with self.condition:
            self.stopping = True
            self.jobs.clear()
            thread = self.thread
            if self.child is not None:
                self.child.kill()
        if thread is None or thread.ident is None:
            return
        thread.join(INTERRUPT_DELAY_S)
        if thread.is_alive():  # it works without a child: interrupt it once it is back in Python
            stop = ctypes.py_object(SystemExit)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), stop)
            thread.join(EXIT_TIMEOUT_S)


_worker = Worker()
# Held while LLVM or the planner runs in this process.
_compile_lock = threading.RLock()


def background_worker() -> Worker:
    """Return the worker of this process."""
    return _worker


def compile_lock() -> threading.RLock:
    """Return this process's lock, which is held while compiling."""
    return _compile_lock


def _stop_worker() -> None:
    _worker.stop()


def _reset_after_fork() -> None:
    """Reset the state in a forked process: it has neither the thread nor its jobs."""
    global _worker, _compile_lock
    _worker = Worker()
    _compile_lock = threading.RLock()


atexit.register(_stop_worker)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)


def child_lines(module: str, request: bytes, timeout_s: float) -> Generator[str, None, None]:
    """Yield the lines that a Python module prints, run in a new process, each within `timeout_s`
    after the one before. request: its standard input.

    Raises ChildFailed if it fails, for which its last line, after "-", is the reason; OSError if
    there is no memory for another process.
    """
    subprocess = import_module("subprocess")  # which most processes do not need
    package = str(Path(__file__).resolve().parents[3])  # the folder that it is in
    folders = os.pathsep.join((package, *filter(None, sys.path)))
    late, why = threading.Event(), ""
    with subprocess.Popen(
        [sys.executable, "-P", "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": folders},
    ) as child:
        with _worker.condition:
            _worker.child = child
            if _worker.stopping:  # `stop` ran before the child was known
                child.kill()
        try:
            with suppress(BrokenPipeError), child.stdin:
                child.stdin.write(request)
            while line := _read_line(child, timeout_s, late):
                if line.startswith("-"):
                    why = line.removeprefix("-")
                else:
                    yield line
            child.wait(EXIT_TIMEOUT_S)
        finally:
            with _worker.condition:
                _worker.child = None
            child.kill()
    if late.is_set():
        raise ChildFailed(
            "background compilation timed out", f"it took longer than {timeout_s:.0f} s"
        )
    if child.returncode != 0:
        why = why or f"its process ended with {child.returncode}"
        raise ChildFailed("background compilation failed", why)


def _read_line(child: subprocess.Popen[bytes], timeout_s: float, late: threading.Event) -> str:
    """Return the next line of a child, empty at its end; end it after `timeout_s`."""

    def stop() -> None:
        late.set()
        child.kill()

    timer = threading.Timer(timeout_s, stop)
    timer.daemon = True
    timer.start()
    try:
        assert child.stdout is not None
        return child.stdout.readline().decode(errors="replace").strip()
    finally:
        timer.cancel()
