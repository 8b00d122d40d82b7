"""The limits of a call: until when it may run, and how many bytes it may use.

A call of the API opens a `Guard` with `limited`; whatever runs inside of it asks `current()`.
Before an allocation whose size a model decides, code calls `admit`, which raises `OverMemory`; in
loops whose length a model decides it calls `check_time`, which raises `OutOfTime`. Who waits for
another process or a C++ library asks `seconds_left` and ends that. The caller that can do without
the result says so with `note`, and the report repeats it.

Imports nothing of superopt but errors, so that every part may import it.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from superopt.errors import OutOfMemory, OutOfTime, UsageError

MEMORY_PART = 0.5  # of the memory that is available when a call begins
OVERRUN_FACTOR = 1.1  # times its budget that a call may take, ...
OVERRUN_SECONDS = 3.0  # ... and seconds more, to give back what it has
LOADING_SECONDS = 1.5  # of these, at most, that importing what a call uses may take
KILL_FACTOR = 1.2  # times its budget, and seconds more, after which the command line ends ...
KILL_SECONDS = 3.7  # ... its process: a second is for starting Python, and for ending all
MEASURED_BYTES = 1 << 24  # an allocation from which on the process's memory is looked at
MEASURED_SECONDS = 0.05  # of work, from which on the time that is left is looked at
BYTES_PER_SECOND = 2e9  # written by numpy at best on one core: admitted work takes at least this
END_POLL_SECONDS = 0.1  # between two looks at an end that may move
NO_LIMIT = float("inf")
NO_MEMORY_LIMIT = 1 << 62


class OverMemory(MemoryError):
    """Something needs more memory than the call may use. Handled as any MemoryError."""


@dataclass(slots=True, eq=False)
class Guard:
    """The limits of a call.

    end: time.monotonic() at which everything has to be over.
    max_memory: bytes of this process and its children.
    budget: seconds as the caller gave them, for messages.
    notes: what was left out for a limit, one sentence each.
    closed: set when the call is over.
    held: what a part of superopt keeps for the time of the call, by the part's name.
    """

    end: float = NO_LIMIT
    max_memory: int = NO_MEMORY_LIMIT
    budget: float = NO_LIMIT
    notes: dict[str, None] = field(default_factory=dict)
    closed: threading.Event = field(default_factory=threading.Event)
    held: dict[str, Any] = field(default_factory=dict)

    def seconds_left(self) -> float:
        """Seconds until the end; negative after it, infinite without one."""
        return self.end - time.monotonic()

    def end_within(self, seconds: float) -> None:
        """Move the end to `seconds` from now, if that is earlier."""
        self.end = min(self.end, time.monotonic() + seconds)

    def at_end(self, action: Callable[[], None]) -> None:
        """Call `action` in another thread at the end, wherever that is by then; not if the call is
        over before."""

        def watch() -> None:
            while (left := self.seconds_left()) > 0:
                if self.closed.wait(min(left, END_POLL_SECONDS)):
                    return
            action()

        threading.Thread(target=watch, daemon=True).start()

    def note(self, sentence: str) -> None:
        """Record what was left out, and why."""
        self.notes.setdefault(sentence)

    def said(self) -> tuple[str, ...]:
        """What was given up, for a report; it is not said again."""
        found = tuple(self.notes)
        self.notes.clear()
        return found


_guard: ContextVar[Guard | None] = ContextVar("superopt.guard", default=None)
_unlimited = Guard()


def current() -> Guard:
    """The guard of the innermost call; one without limits outside of all calls."""
    return _guard.get() or _unlimited


@contextmanager
def limited(
    budget: float | None = None, max_memory: int | None = None, *, begin: float | None = None
) -> Iterator[Guard]:
    """Limit what runs inside to about `budget` seconds and to `max_memory` bytes.

    The end is at OVERRUN_FACTOR * budget + OVERRUN_SECONDS from now: a call that looks at its
    budget itself ends before. begin: time.monotonic() at which the call began to import what it
    uses; up to LOADING_SECONDS of that count. None means no limit of time, and MEMORY_PART of the
    memory that is available. A guard inside another never allows more than that one does. The
    outermost raises OutOfMemory for an OverMemory that nobody handled.
    """
    outer = current()
    if max_memory is not None:
        limit = max_memory
    elif outer is _unlimited:
        limit = int(MEMORY_PART * available_memory()) + resident_bytes()
    else:
        limit = outer.max_memory
    end, seconds = outer.end, outer.budget
    if budget is not None:
        now = time.monotonic()
        loading = 0.0 if begin is None else min(now - begin, LOADING_SECONDS)
        own = now - loading + OVERRUN_FACTOR * budget + OVERRUN_SECONDS
        if own < end:
            end, seconds = own, budget
    made = Guard(end, min(limit, outer.max_memory), seconds, outer.notes)
    if outer is _unlimited:
        made.notes = {}
    token = _guard.set(made)
    try:
        yield made
    except OverMemory as e:
        if outer is not _unlimited:
            raise
        todo = "give more by --max-memory (max_memory=)"
        raise OutOfMemory("there is not enough memory", str(e), todo) from e
    finally:
        _guard.reset(token)
        made.closed.set()


def check_time(doing: str) -> None:
    """Raises OutOfTime where the time of the call is over. doing: what is under way, a phrase."""
    guard = _guard.get()
    if guard is not None and time.monotonic() > guard.end:
        raise out_of_time(doing)


def out_of_time(doing: str) -> OutOfTime:
    """The error that says so."""
    seconds = current().budget
    why = f"its budget of {seconds:g} s is over" if seconds < NO_LIMIT else "it was told to end"
    return OutOfTime(f"{doing} was given up", why, "give more time")


def admit(size: int, doing: str) -> None:
    """Raises OverMemory where `size` bytes more are too much, OutOfTime where writing them alone
    takes longer than there is time. doing: what needs them, a noun phrase."""
    if size < MEASURED_BYTES:
        return
    guard = _guard.get()
    if guard is None:
        return
    if size > guard.max_memory or size + bytes_in_use() > guard.max_memory:
        raise OverMemory(over_memory(size, doing))
    require_time(size / BYTES_PER_SECOND, doing, f"writing {size_text(size)}")


def require_time(seconds: float, doing: str, work: str) -> None:
    """Raises OutOfTime where less than `seconds` are left, which a call that nothing interrupts
    takes at least. doing: what it is for; work: what takes them; both noun phrases."""
    guard = _guard.get()
    if guard is None or seconds <= max(guard.seconds_left(), MEASURED_SECONDS):
        return
    if guard.budget == NO_LIMIT:
        raise out_of_time(doing)
    raise OutOfTime(
        f"{doing} was given up",
        f"{work} takes {seconds:.2g} s at least, more than what is left of the budget of"
        f" {guard.budget:g} s",
        "give more time",
    )


def over_memory(size: int, doing: str) -> str:
    """A sentence: what needs how many bytes, and how many there may be."""
    return (
        f"{doing} needs {size_text(size)}, more than what is left of --max-memory"
        f" {size_text(current().max_memory)}"
    )


def size_text(size: int) -> str:
    """Bytes in a unit of three digits at most: "9.3 GB"."""
    power = min(4, int(f"{size:.2e}".partition("e")[2]) // 3)
    return f"{size / 1000**power:.3g} {('B', 'kB', 'MB', 'GB', 'TB')[power]}"


def parse_size(text: str) -> int:
    """A number of bytes: "8GB", "512MB", "1.5 GiB", "4096"; raises ValueError otherwise."""
    found = re.fullmatch(r"(\d+\.?\d*|\.\d+)\s*(?:([kmgt]?)(i?)b?)", text.strip().lower())
    if not found or (found[3] and not found[2]):
        raise ValueError(f"{text!r} is no size; write it as 8GB, 512MB or 4096 (bytes)")
    power = " kmgt".index(found[2] or " ")
    size = int(float(found[1]) * (1024 if found[3] else 1000) ** power)
    if size < 1:
        raise ValueError(f"{text!r} is no memory at all; give at least some megabytes")
    return size


def bytes_given(value: int | str | None) -> int | None:
    """The argument `max_memory` of the API as bytes. Raises UsageError where it is no size."""
    try:
        if value is None or (type(value) is int and value > 0):
            return value
        if isinstance(value, str):
            return parse_size(value)
    except ValueError:
        pass
    raise UsageError(
        f"max_memory {value!r}", "it is a number of bytes, or a text such as '8GB'", "give one"
    )


def resident_bytes(process: int | str = "self") -> int:
    """Bytes of memory that a process has for its own, files that it maps not counted; 0 where the
    system does not say."""
    try:
        with open(f"/proc/{process}/statm", "rb") as file:
            fields = file.read().split()
    except OSError:
        return 0
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")


def bytes_in_use() -> int:
    """The same of this process and those that it started."""
    size = resident_bytes()
    with suppress(OSError):
        for thread in Path("/proc/self/task").iterdir():
            size += sum(map(resident_bytes, (thread / "children").read_text().split()))
    return size


def available_memory() -> int:
    """Bytes that a new process may use: what the machine, and each control group around this
    process, has left."""
    found = [_machine_memory()]
    for folder in _control_groups():
        limit = _number(folder / "memory.max") or _number(folder / "memory.limit_in_bytes")
        used = _number(folder / "memory.current") or _number(folder / "memory.usage_in_bytes")
        if limit is not None:
            cached = _field(folder / "memory.stat", "inactive_file") or 0
            found.append(max(limit - max((used or 0) - cached, 0), 0))
    return min(found)


def _machine_memory() -> int:
    available = _field(Path("/proc/meminfo"), "MemAvailable:")
    if available is not None:
        return available * 1024
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return 8 << 30


def _control_groups() -> Iterator[Path]:
    """The folders of the control groups that this process is in, inner ones first."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, place = line.split(":", 2)
        if controllers not in ("", "memory") and "memory" not in controllers.split(","):
            continue
        root = Path("/sys/fs/cgroup") / ("memory" if controllers else "")
        inner = root / place.lstrip("/")
        yield from (p for p in (inner, *inner.parents) if p == root or root in p.parents)


def _number(path: Path) -> int | None:
    """The number in a file; None where there is no such file, or no number in it ("max")."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _field(path: Path, name: str) -> int | None:
    """The number behind a name at the beginning of a line."""
    try:
        for line in path.read_text().splitlines():
            if line.split(maxsplit=1)[0:1] == [name]:
                return int(line.split()[1])
    except (OSError, ValueError, IndexError):
        pass
    return None
