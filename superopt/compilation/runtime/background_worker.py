"""Background work of a process, one job at a time.

A thread takes the jobs and ends when there are none. Work that would hold the interpreter for long
runs in a forked child process (`run_in_child`). The child shares the parent's memory copy-on-write,
has a low priority, and hands its results over in files, so calls do not wait for the GIL, and the
memory that compilation leaves behind goes with the child. Without a safe fork (macOS has an unsafe
one) the thread does the work.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import gc
import logging
import os
import select
import signal
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NoReturn

from superopt.errors import SuperoptError

LOG = logging.getLogger("superopt.compile")
CHILD_NICENESS: Final = 10  # niceness of a child
EXIT_TIMEOUT_S: Final = 10.0  # the end of the process waits so long for a job
INTERRUPT_DELAY_S: Final = 0.2  # until a thread is interrupted
MAX_QUEUED_JOBS: Final = 8  # waiting jobs
CAN_FORK: Final = sys.platform == "linux"


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
    child: int | None = None
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
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.child, signal.SIGKILL)
        if thread is None or thread.ident is None:
            return
        thread.join(INTERRUPT_DELAY_S)
        if thread.is_alive():  # it works without a child: interrupt it once it is back in Python
            stop = ctypes.py_object(SystemExit)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), stop)
            thread.join(EXIT_TIMEOUT_S)


_worker = Worker()
# Held while LLVM or the planner runs in this process, and while it forks, so that a child finds
# their locks free.
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


def run_in_child(
    work: Callable[[], str],
    timeout_s: float,
    fork_lock: contextlib.AbstractContextManager[object] | None = None,
) -> str:
    """Return the result of `work`, computed in a forked child of low priority within `timeout_s`.

    fork_lock: held while this process forks, so that the child can use a library that has locks.

    Raises ChildFailed if the child ends otherwise or `work` raises; OSError if there is no memory
    for another process.
    """
    reader, writer = os.pipe()
    try:
        with compile_lock(), fork_lock or contextlib.nullcontext(), warnings.catch_warnings():
            # about forking a process with threads
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
            if child == 0:
                _run_child(work, reader, writer)
    except BaseException:
        os.close(reader)
        os.close(writer)
        raise
    os.close(writer)
    _worker.child = child
    text = None
    try:
        if _worker.stopping:  # `stop` ran before the child was known
            timeout_s = 0.0
        text = _read_pipe(reader, time.monotonic() + timeout_s)
    finally:
        os.close(reader)
        with _worker.condition:
            _worker.child = None  # from here on its PID may be reused
        status = _wait_for_child(child, kill=text is None)
    if text is None:
        why = f"it took longer than {timeout_s:.0f} s"
        raise ChildFailed("background compilation timed out", why)
    if status != 0 or not text.startswith("+"):
        why = text[1:] or f"its process ended with {status}"
        raise ChildFailed("background compilation failed", why)
    return text[1:]


def _wait_for_child(child: int, kill: bool) -> int:
    """Return the exit status of a child; negative: the signal that killed it."""
    if kill:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    try:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    except ChildProcessError:  # another thread waited for it
        return 0


def _read_pipe(reader: int, deadline: float) -> str | None:
    """Return all data of a pipe until its other end closes; None on timeout."""
    parts: list[bytes] = []
    ready = select.poll()
    ready.register(reader, select.POLLIN | select.POLLHUP)
    while (left := deadline - time.monotonic()) > 0:
        if not ready.poll(1000 * left):
            break
        if not (part := os.read(reader, 1 << 16)):
            return b"".join(parts).decode(errors="replace")
        parts.append(part)
    return None


def _run_child(work: Callable[[], str], reader: int, writer: int) -> NoReturn:
    """Run the work, write its result, and exit without cleanup."""
    code = 1
    try:
        gc.disable()  # it would write to all objects and so copy their pages
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's to handle
        faulthandler.disable()
        os.close(reader)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        with contextlib.suppress(OSError):
            os.nice(CHILD_NICENESS)
        try:
            text = f"+{work()}"
        except BaseException as e:
            text = f"-{type(e).__name__}: {e}"
        held = text.encode(errors="replace")
        while held:
            held = held[os.write(writer, held) :]
        code = 0
    finally:
        os._exit(code)
