"""Background work of a process, one job at a time.

A thread takes the jobs and ends when there are none. Work that would hold the interpreter for long
runs in a child process (child_process.py). The child has a low priority and hands its results over
in files, so calls do not wait for the GIL, and the memory that compilation leaves behind goes with
the child.
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
from dataclasses import dataclass, field
from typing import Final

from superopt.compilation.runtime.child_process import Child

LOG = logging.getLogger("superopt.compile")
EXIT_TIMEOUT_S: Final = 10.0  # the end of the process waits so long for a job
INTERRUPT_DELAY_S: Final = 0.2  # until a thread is interrupted
MAX_QUEUED_JOBS: Final = 8  # waiting jobs
MAX_WAITING_CHILDREN: Final = 2  # each has the compiler in memory


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """owner: whose jobs can be waited for; run: must not raise."""

    owner: int
    run: Callable[[], None]


@dataclass(slots=True)
class Worker:
    """The jobs of this process. children: the processes that work on them now. waiting: those that
    have opened a model and wait for its first call. ends_job: the present job is not needed."""

    condition: threading.Condition = field(default_factory=threading.Condition)
    jobs: deque[Job] = field(default_factory=deque)
    current: Job | None = None
    thread: threading.Thread | None = None
    children: set[Child] = field(default_factory=set)
    waiting: deque[Child] = field(default_factory=deque)
    ends_job: bool = False
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

    def keep_waiting(self, child: Child) -> None:
        """Keep a child until its model is called; end the one that has waited longest beyond a
        limit."""
        with self.condition:
            self.waiting.append(child)
            while len(self.waiting) > MAX_WAITING_CHILDREN:
                self.waiting.popleft().close()

    def take_waiting(self, child: Child) -> bool:
        """Take a child that waits; return whether it still does."""
        with self.condition:
            if child not in self.waiting:
                return False
            self.waiting.remove(child)
        if child.is_running:
            return True
        child.close()
        return False

    def end_job(self, owner: int) -> None:
        """Drop the jobs of this owner, and end the child that works on one."""
        with self.condition:
            self.jobs = deque(job for job in self.jobs if job.owner != owner)
            if self.current is not None and self.current.owner == owner:
                self.ends_job = True
                for child in self.children:
                    child.process.kill()

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
                self.current, self.ends_job = self.jobs.popleft(), False
                self.condition.notify_all()
            try:
                self.current.run()
            except SystemExit:  # `stop`
                self.stopping = True
            except Exception:  # a job must not raise; others still run
                LOG.exception("background compilation failed")

    def stop(self) -> None:
        """End the work before the interpreter exits: a thread inside LLVM would crash then. A child
        may go on, unless the user has interrupted the process."""
        is_interrupted = getattr(sys, "last_type", None) is KeyboardInterrupt
        with self.condition:  # the thread has just been started, or takes a job
            self.condition.wait_for(lambda: self.current or not self.jobs, INTERRUPT_DELAY_S)
            self.stopping = True
            self.jobs.clear()
            thread = self.thread
            for child in self.children:
                child.process.kill() if is_interrupted else child.leave()
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


def child_lines(child: Child, timeout_s: float) -> Generator[str, None, None]:
    """Yield the lines that a child prints, each within `timeout_s` after the one before. The child
    is killed when the lines are closed; at the end of this process it may go on.

    Raises ChildFailed if it fails, for which its last line, after "-", is the reason; SystemExit if
    it is left, and this process ends.
    """
    with _worker.condition:
        _worker.children.add(child)
        if _worker.ends_job and threading.current_thread() is _worker.thread:
            child.process.kill()  # `end_job` ran before this one was known, or `stop`:
        elif _worker.stopping:
            child.leave()
    try:
        while line := child.read_line(timeout_s):
            yield line
        if child.is_left.is_set():
            raise SystemExit
        child.check_result(timeout_s)
    finally:
        with _worker.condition:
            _worker.children.discard(child)
            child.close()
