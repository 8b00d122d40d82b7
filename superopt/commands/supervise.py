"""The last line of a command's limits: a parent process that ends it.

Python cannot interrupt a call into C++ (Z3, LLVM, onnxruntime, protobuf), nor handle a signal while
one runs. So a command forks once its arguments are read, before anything heavy is loaded: the child
does the work, and the parent waits for it. The parent hands signals on, and ends the child with all
its descendants where it does not end by itself: KILL_SECONDS beyond 1.2 times the budget,
TERM_SECONDS after SIGTERM, or once all of them together use more memory than they may. Temporary
files of the child lie in a folder that the parent removes.

Where there is no fork (Windows) a thread ends the process at the same times; it waits for C++ code
that holds Python's lock.
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

LEAVING_SECONDS = 5.0  # that Python may take to free all that a command made
TERM_SECONDS = 1.2  # after SIGTERM: ending the family took 0.1 to 0.8 s more at a load of 10
STARTING_SECONDS = 10.0  # that Python takes at most before this is loaded; else it was loaded late
POLL_SECONDS = 0.2  # between two looks at the child's memory


def _process_begin() -> float:
    """time.monotonic() when this process was started; now, where the system does not say."""
    now = time.monotonic()
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[19])  # since the machine was started
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return now
    return now - min(max(age, 0.0), STARTING_SECONDS)


BEGIN = _process_begin()


@dataclass(slots=True)
class Process:
    """Click's object of all commands. own: the process is this command's own, and may fork; limits:
    those of the child that this process is, once it is one."""

    own: bool
    limits: Limits | None = None

    def leave(self, code: int) -> NoReturn:
        """End the process. A child whose time is nearly over ends at once: its parent cleans up."""
        if self.limits is not None and time.monotonic() > self.limits.end - LEAVING_SECONDS:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)
        sys.exit(code)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a command may take: its name, seconds (of which the budget is one) and bytes."""

    command: str
    budget: float
    max_memory: int
    begin: float

    @property
    def end(self) -> float:
        """time.monotonic() at which the child is ended."""
        if self.budget == NO_LIMIT:
            return NO_LIMIT
        return self.begin + KILL_FACTOR * self.budget + KILL_SECONDS


def supervise(context: click.Context, budget: float | None, max_memory: int) -> None:
    """Limit the command of a context, where the process is its own: go on in a child process, which
    returns; the parent waits for it and exits with its code. budget: seconds; None: no limit.

    Raises in the parent what ended the child, as an error that a person can act on.
    """
    process = context.find_object(Process)
    if process is None or not process.own:
        return
    name = context.command_path.partition(" ")[2]
    limits = Limits(name, NO_LIMIT if budget is None else budget, max_memory, BEGIN)
    if not hasattr(os, "fork") or not hasattr(signal, "sigtimedwait"):
        threading.Thread(target=_end_late, args=(limits,), daemon=True).start()
        return
    folder = Path(tempfile.mkdtemp(prefix="superopt-"))
    watched = [signal.SIGCHLD, signal.SIGTSTP]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup leaves SIGHUP
            watched.append(number)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)  # signals reach it through its parent alone, each of them once
        os.close(writer)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        process.limits = limits
        os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
        threading.Thread(target=_end_with_parent, args=(reader,), daemon=True).start()
        return
    os.close(reader)
    try:
        code = _Parent(child, limits, watched).wait()
    finally:
        _kill(child)
        shutil.rmtree(folder, ignore_errors=True)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    sys.exit(code)


def _end_with_parent(reader: int) -> None:
    """End this process when its parent does, whatever it is doing: nobody writes to this pipe."""
    os.read(reader, 1)
    os._exit(ExitCode.ABORTED)


def _end_late(limits: Limits) -> None:
    """End this process at its end; the main thread does it, where it is not in C++ code."""
    time.sleep(min(max(limits.end - time.monotonic(), 0.0), threading.TIMEOUT_MAX))
    os.write(2, f"error: {_late(limits)}\n".encode(errors="replace"))
    os._exit(ExitCode.UNDECIDED)


@dataclass(slots=True)
class _Parent:
    """Waits for a child. end: when it is to be ended; why: what is said then."""

    child: int
    limits: Limits
    watched: list[signal.Signals]
    end: float = NO_LIMIT
    why: SuperoptError | None = None

    def wait(self) -> int:
        """The child's exit code. Raises the error that says why it was ended."""
        self.end, self.why = self.limits.end, _late(self.limits)
        while True:
            pause = min(POLL_SECONDS, max(self.end - time.monotonic(), 0.0))
            heard = signal.sigtimedwait(self.watched, pause)
            if heard is not None:
                self.hand_on(signal.Signals(heard.si_signo))
            code = _exit_code(self.child)
            if code is not None:
                return self.checked(code)
            if time.monotonic() >= self.end:
                assert self.why is not None
                raise self.why
            self.check_memory()

    def hand_on(self, number: signal.Signals) -> None:
        """Do with the child what a signal says."""
        if number == signal.SIGCHLD:
            return
        if number == signal.SIGTSTP:
            _signal_group(self.child, signal.SIGSTOP)
            os.kill(os.getpid(), signal.SIGSTOP)
            _signal_group(self.child, signal.SIGCONT)
            return
        if number == signal.SIGINT:
            _signal_group(self.child, number)  # all processes of a terminal's command get it
        else:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.child, number)
        if number != signal.SIGINT and self.end > (end := time.monotonic() + TERM_SECONDS):
            self.end = end
            self.why = Aborted(
                f"superopt {self.limits.command} was ended by {number.name}",
                f"it did not end by itself within {TERM_SECONDS:g} s",
                "nothing partial was left behind",
            )

    def checked(self, code: int) -> int:
        """The exit code of a child that ended by itself; raises where a signal ended it."""
        if code >= 0:
            return code
        name = signal.Signals(-code).name
        if -code in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            raise Aborted("aborted", f"ended by {name}", "nothing partial was left behind")
        raise ModelError(
            f"superopt {self.limits.command} was ended by {name}",
            "a library that it uses crashed, or the machine has no memory left",
            "give --max-memory, or run it again with less beside it",
        )

    def check_memory(self) -> None:
        """Raises OutOfMemory where the child and its descendants use more than they may."""
        most = self.limits.max_memory
        family = [self.child, *descendants(self.child)]
        if sum(map(_anonymous, family)) <= most:
            return
        used = sum(map(_proportional, family))  # what forks share is counted once
        if used > most:
            raise OutOfMemory(
                f"superopt {self.limits.command} was given up",
                f"it uses {size_text(used)}, more than --max-memory {size_text(most)}",
                "give more by --max-memory, or a smaller model",
            )


def _late(limits: Limits) -> OutOfTime:
    return OutOfTime(
        f"superopt {limits.command} was given up",
        f"it did not end by itself in {KILL_FACTOR:g} times its budget of {limits.budget:g} s",
        "give it more time, or a smaller model",
    )


def _exit_code(child: int) -> int | None:
    """How the child ended, a negative number for a signal; None while it runs."""
    try:
        found, status = os.waitpid(child, os.WNOHANG)
    except ChildProcessError:
        return int(ExitCode.INTERNAL)
    return os.waitstatus_to_exitcode(status) if found else None


def _signal_group(child: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, number)


def _kill(child: int) -> None:
    """End the child and its descendants, those in sessions of their own too."""
    family = descendants(child)
    _signal_group(child, signal.SIGKILL)
    for process in family:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(child, 0)


def descendants(process: int) -> list[int]:
    """The processes that a process started, and those that these did."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{process}/task"):
            text = Path(f"/proc/{process}/task/{thread}/children").read_text()
            for child in map(int, text.split()):
                found += [child, *descendants(child)]
    return found


def _anonymous(process: int) -> int:
    """Bytes of memory of a process that are of no file; what it shares is counted in full."""
    return 1024 * _field(process, "status", "RssAnon:")


def _proportional(process: int) -> int:
    """The same, where n processes share a page an n-th of it."""
    return 1024 * _field(process, "smaps_rollup", "Pss_Anon:") or _anonymous(process)


def _field(process: int, file: str, name: str) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path(f"/proc/{process}/{file}").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1])
    return 0
