"""The outer limits of a command: a parent process that kills it.

Python can neither interrupt a call into C++ (Z3, LLVM, onnxruntime, protobuf) nor handle a signal
during one. So a command forks once its arguments are parsed, before anything heavy is loaded: the
child does the work, and the parent waits for it. The parent forwards signals. It kills the child
with all its descendants KILL_SECONDS after 1.2 times the budget, TERM_GRACE_SECONDS after SIGTERM,
or once all of them together exceed the memory limit. Temporary files of the child are in a folder
that the parent removes.

Without fork (Windows) a thread ends the process at the same times; it has to wait for C++ code that
holds the GIL.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import click

from superopt.errors import Aborted, ExitCode, ModelError, OutOfMemory, OutOfTime, SuperoptError
from superopt.guard import KILL_FACTOR, KILL_SECONDS, NO_LIMIT, size_text

MAX_TEARDOWN_SECONDS = 5.0  # that Python may take to free the objects of a command
TERM_GRACE_SECONDS = 1.2  # between SIGTERM and SIGKILL; ending the family takes 0.1 to 0.8 s more
MAX_STARTUP_SECONDS = (
    10.0  # the longest start of Python before this module is loaded; if longer, it was loaded late
)
POLL_SECONDS = 0.2  # between two reads of the child's memory


def _process_start_time() -> float:
    """Return time.monotonic() at the start of this process; now, if the system does not tell."""
    now = time.monotonic()
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[19])  # since the machine was started
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return now
    return now - min(max(age, 0.0), MAX_STARTUP_SECONDS)


PROCESS_START = _process_start_time()


@dataclass(slots=True)
class Process:
    """The click object of all commands.

    may_fork: the process belongs to the command; limits: of the child, in the child.
    """

    may_fork: bool
    limits: Limits | None = None

    def exit_process(self, code: int) -> NoReturn:
        """Exit the process. A child close to its deadline exits at once: its parent cleans up."""
        if (
            self.limits is not None
            and time.monotonic() > self.limits.deadline - MAX_TEARDOWN_SECONDS
        ):
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)
        sys.exit(code)


@dataclass(frozen=True, slots=True)
class Limits:
    """The name, budget in seconds and memory limit in bytes of a command."""

    command: str
    budget: float
    max_memory: int
    start_time: float

    @property
    def deadline(self) -> float:
        """Return time.monotonic() at which the child is killed."""
        if self.budget == NO_LIMIT:
            return NO_LIMIT
        return self.start_time + KILL_FACTOR * self.budget + KILL_SECONDS


def supervise(context: click.Context, budget: float | None, max_memory: int) -> None:
    """Fork and limit the command of a context, if the process belongs to it.

    Returns in the child process; the parent waits for it and exits with its code. budget: seconds;
    None: no limit. Raises in the parent the error that says why the child was killed.
    """
    process = context.find_object(Process)
    if process is None or not process.may_fork:
        return
    name = context.command_path.partition(" ")[2]
    limits = Limits(name, NO_LIMIT if budget is None else budget, max_memory, PROCESS_START)
    if not hasattr(os, "fork") or not hasattr(signal, "sigtimedwait"):
        threading.Thread(target=_exit_at_deadline, args=(limits,), daemon=True).start()
        return
    folder = Path(tempfile.mkdtemp(prefix="superopt-"))
    watched = [signal.SIGCHLD, signal.SIGTSTP]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup sets for SIGHUP
            watched.append(number)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)  # signals reach the child only through its parent, each one once
        os.close(writer)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        process.limits = limits
        os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
        threading.Thread(target=_exit_with_parent, args=(reader,), daemon=True).start()
        return
    os.close(reader)
    try:
        code = _Parent(child, limits, watched).wait()
    finally:
        _kill(child)
        shutil.rmtree(folder, ignore_errors=True)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    sys.exit(code)


def _exit_with_parent(reader: int) -> None:
    """Exit when the parent exits, at any time: nobody writes to this pipe."""
    os.read(reader, 1)
    os._exit(ExitCode.ABORTED)


def _exit_at_deadline(limits: Limits) -> None:
    """Exit at the deadline, or when C++ code in the main thread releases the GIL."""
    time.sleep(min(max(limits.deadline - time.monotonic(), 0.0), threading.TIMEOUT_MAX))
    os.write(2, f"error: {_timeout_error(limits)}\n".encode(errors="replace"))
    os._exit(ExitCode.UNDECIDED)


@dataclass(slots=True)
class _Parent:
    """Waits for a child. deadline: when to kill it; error: raised then."""

    child: int
    limits: Limits
    watched: list[signal.Signals]
    deadline: float = NO_LIMIT
    error: SuperoptError | None = None

    def wait(self) -> int:
        """Return the child's exit code. Raises the error that says why it was killed."""
        self.deadline, self.error = self.limits.deadline, _timeout_error(self.limits)
        while True:
            pause = min(POLL_SECONDS, max(self.deadline - time.monotonic(), 0.0))
            heard = signal.sigtimedwait(self.watched, pause)
            if heard is not None:
                self.forward_signal(signal.Signals(heard.si_signo))
            code = _poll_exit_code(self.child)
            if code is not None:
                return self.check_exit_code(code)
            if time.monotonic() >= self.deadline:
                assert self.error is not None
                raise self.error
            self.check_memory()

    def forward_signal(self, number: signal.Signals) -> None:
        """Forward a signal to the child."""
        if number == signal.SIGCHLD:
            return
        if number == signal.SIGTSTP:
            _signal_group(self.child, signal.SIGSTOP)
            os.kill(os.getpid(), signal.SIGSTOP)
            _signal_group(self.child, signal.SIGCONT)
            return
        if number == signal.SIGINT:
            _signal_group(self.child, number)  # a terminal sends it to all processes of a command
        else:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.child, number)
        if number != signal.SIGINT and self.deadline > (
            end := time.monotonic() + TERM_GRACE_SECONDS
        ):
            self.deadline = end
            self.error = Aborted(
                f"superopt {self.limits.command} was killed after {number.name}",
                f"it did not exit within {TERM_GRACE_SECONDS:g} s",
                "no partial output was written",
            )

    def check_exit_code(self, code: int) -> int:
        """Return the exit code of a child that exited; raises if a signal killed it."""
        if code >= 0:
            return code
        name = signal.Signals(-code).name
        if -code in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            raise Aborted("aborted", f"ended by {name}", "no partial output was written")
        raise ModelError(
            f"superopt {self.limits.command} was killed by {name}",
            "a library crashed, or the machine is out of memory",
            "pass --max-memory, or free memory and run it again",
        )

    def check_memory(self) -> None:
        """Raise OutOfMemory if the child and its descendants exceed the memory limit."""
        most = self.limits.max_memory
        family = [self.child, *descendants(self.child)]
        if sum(map(_anonymous_bytes, family)) <= most:
            return
        used = sum(map(_proportional_bytes, family))  # counts memory shared by forks once
        if used > most:
            raise OutOfMemory(
                f"superopt {self.limits.command} was killed",
                f"it uses {size_text(used)}, more than --max-memory {size_text(most)}",
                "raise --max-memory, or use a smaller model",
            )


def _timeout_error(limits: Limits) -> OutOfTime:
    return OutOfTime(
        f"superopt {limits.command} was killed",
        f"it did not exit within {KILL_FACTOR:g} times its budget of {limits.budget:g} s",
        "raise the budget, or use a smaller model",
    )


def _poll_exit_code(child: int) -> int | None:
    """Return the child's exit code, negative for a signal; None while it runs."""
    try:
        found, status = os.waitpid(child, os.WNOHANG)
    except ChildProcessError:
        return int(ExitCode.INTERNAL)
    return os.waitstatus_to_exitcode(status) if found else None


def _signal_group(child: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, number)


def _kill(child: int) -> None:
    """Kill the child and its descendants, including those in sessions of their own."""
    family = descendants(child)
    _signal_group(child, signal.SIGKILL)
    for process in family:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(child, 0)


def descendants(process: int) -> list[int]:
    """Return the ids of all descendants of a process."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{process}/task"):
            text = Path(f"/proc/{process}/task/{thread}/children").read_text()
            for child in map(int, text.split()):
                found += [child, *descendants(child)]
    return found


def _anonymous_bytes(process: int) -> int:
    """Return the bytes of anonymous memory of a process; shared pages count in full."""
    return 1024 * _read_field(process, "status", "RssAnon:")


def _proportional_bytes(process: int) -> int:
    """Return the proportional set size (PSS) of the anonymous memory of a process."""
    return 1024 * _read_field(process, "smaps_rollup", "Pss_Anon:") or _anonymous_bytes(process)


def _read_field(process: int, file: str, name: str) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path(f"/proc/{process}/{file}").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1])
    return 0
