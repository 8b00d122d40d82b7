"""The limits of a call: its deadline and its memory.

A call of the API opens a `Guard` with `limit_call`; code inside reads it by `current_guard()`.
Before an allocation whose size depends on a model, code calls `require_memory`, which raises
`MemoryLimitError`; in loops whose length depends on a model it calls `check_time`, which raises
`OutOfTime`. Code that waits for another process or a C++ library reads `seconds_left` and ends
that. A caller that can proceed without the result records it with `note`, and the report repeats
the note.

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

DEFAULT_MEMORY_FRACTION = 0.5  # of the memory that is available when a call begins
OVERRUN_FACTOR = 1.1  # times its budget that a call may take, ...
OVERRUN_SECONDS = 3.0  # ... plus these seconds, to return its result
MAX_LOADING_SECONDS = 1.5  # of these, at most, that importing the modules of a call may take
KILL_FACTOR = 1.2  # times its budget, plus KILL_SECONDS, after which the command line kills ...
KILL_SECONDS = 3.7  # ... its process: one second is for starting Python and for exiting
MIN_CHECKED_BYTES = 1 << 24  # the smallest allocation for which the process's memory is read
MIN_CHECKED_SECONDS = 0.05  # the shortest work for which the remaining time is read
MAX_WRITE_BYTES_PER_SECOND = (
    2e9  # written by numpy at best on one core: bounds an allocation's time
)
DEADLINE_POLL_SECONDS = 0.1  # between two reads of a deadline that may move
NO_LIMIT = float("inf")
NO_MEMORY_LIMIT = 1 << 62


class MemoryLimitError(MemoryError):
    """An operation needs more memory than the call may use. Handled as any MemoryError."""


@dataclass(slots=True, eq=False)
class Guard:
    """The limits of a call.

    deadline: time.monotonic() at which the call must have ended.
    max_memory: bytes of this process and its children.
    budget: seconds as the caller passed them, for messages.
    notes: what was skipped because of a limit, one sentence each.
    closed: set when the call has ended.
    resources: objects that a part of superopt keeps during the call, by the part's name.
    """

    deadline: float = NO_LIMIT
    max_memory: int = NO_MEMORY_LIMIT
    budget: float = NO_LIMIT
    notes: dict[str, None] = field(default_factory=dict)
    closed: threading.Event = field(default_factory=threading.Event)
    resources: dict[str, Any] = field(default_factory=dict)

    def seconds_left(self) -> float:
        """Return the seconds until the deadline; negative after it, infinite without one."""
        return self.deadline - time.monotonic()

    def shorten_deadline(self, seconds: float) -> None:
        """Move the deadline to `seconds` from now, if that is earlier."""
        self.deadline = min(self.deadline, time.monotonic() + seconds)

    def on_deadline(self, action: Callable[[], None]) -> None:
        """Call `action` in another thread at the deadline; not if the call ends before."""

        def watch() -> None:
            while (left := self.seconds_left()) > 0:
                if self.closed.wait(min(left, DEADLINE_POLL_SECONDS)):
                    return
            action()

        threading.Thread(target=watch, daemon=True).start()

    def note(self, sentence: str) -> None:
        """Record what was skipped, and why."""
        self.notes.setdefault(sentence)

    def take_notes(self) -> tuple[str, ...]:
        """Return the notes for a report and clear them."""
        found = tuple(self.notes)
        self.notes.clear()
        return found


_guard: ContextVar[Guard | None] = ContextVar("superopt.guard", default=None)
_unlimited = Guard()


def current_guard() -> Guard:
    """Return the guard of the innermost call; outside of all calls, one without limits."""
    return _guard.get() or _unlimited


@contextmanager
def limit_call(
    budget: float | None = None, max_memory: int | None = None, *, begin: float | None = None
) -> Iterator[Guard]:
    """Limit the code inside to about `budget` seconds and to `max_memory` bytes.

    The deadline is OVERRUN_FACTOR * budget + OVERRUN_SECONDS from now: a call that watches its
    budget ends before. begin: time.monotonic() at which the call began to import its modules; up to
    MAX_LOADING_SECONDS of that count. None means no deadline, or DEFAULT_MEMORY_FRACTION of the
    available memory. An inner guard never allows more than the outer one. The outermost one raises
    OutOfMemory for a MemoryLimitError that nobody handled.
    """
    outer = current_guard()
    if max_memory is not None:
        limit = max_memory
    elif outer is _unlimited:
        limit = int(DEFAULT_MEMORY_FRACTION * available_memory()) + resident_bytes()
    else:
        limit = outer.max_memory
    end, seconds = outer.deadline, outer.budget
    if budget is not None:
        now = time.monotonic()
        loading = 0.0 if begin is None else min(now - begin, MAX_LOADING_SECONDS)
        own = now - loading + OVERRUN_FACTOR * budget + OVERRUN_SECONDS
        if own < end:
            end, seconds = own, budget
    made = Guard(end, min(limit, outer.max_memory), seconds, outer.notes)
    if outer is _unlimited:
        made.notes = {}
    token = _guard.set(made)
    try:
        yield made
    except MemoryLimitError as e:
        if outer is not _unlimited:
            raise
        todo = "raise --max-memory (max_memory=)"
        raise OutOfMemory("out of memory", str(e), todo) from e
    finally:
        _guard.reset(token)
        made.closed.set()


def check_time(activity: str) -> None:
    """Raise OutOfTime if the deadline has passed. activity: a noun phrase for the message."""
    guard = _guard.get()
    if guard is not None and time.monotonic() > guard.deadline:
        raise out_of_time_error(activity)


def out_of_time_error(activity: str) -> OutOfTime:
    """Return the error that names the activity and the budget."""
    seconds = current_guard().budget
    why = f"its budget of {seconds:g} s is over" if seconds < NO_LIMIT else "the call was stopped"
    return OutOfTime(f"{activity} was stopped", why, "raise the budget")


def require_memory(size: int, activity: str) -> None:
    """Raise MemoryLimitError if `size` more bytes exceed the limit, OutOfTime if writing them alone
    takes longer than the time left. activity: what needs them, a noun phrase."""
    if size < MIN_CHECKED_BYTES:
        return
    guard = _guard.get()
    if guard is None:
        return
    if size > guard.max_memory or size + bytes_in_use() > guard.max_memory:
        raise MemoryLimitError(memory_limit_text(size, activity))
    require_time(size / MAX_WRITE_BYTES_PER_SECOND, activity, f"writing {size_text(size)}")


def require_time(seconds: float, activity: str, work: str) -> None:
    """Raise OutOfTime if less than `seconds` are left, the least time of a call that cannot be
    interrupted. activity: the purpose; work: the call; both noun phrases."""
    guard = _guard.get()
    if guard is None or seconds <= max(guard.seconds_left(), MIN_CHECKED_SECONDS):
        return
    if guard.budget == NO_LIMIT:
        raise out_of_time_error(activity)
    raise OutOfTime(
        f"{activity} was skipped",
        f"{work} takes at least {seconds:.2g} s, more than what is left of the budget of "
        f"{guard.budget:g} s",
        "raise the budget",
    )


def memory_limit_text(size: int, activity: str) -> str:
    """Return a sentence with the bytes that the activity needs and the limit."""
    return (
        f"{activity} needs {size_text(size)}, more than what is left of --max-memory "
        f"{size_text(current_guard().max_memory)}"
    )


def size_text(size: int) -> str:
    """Return bytes with a unit and at most three digits: "9.3 GB"."""
    power = min(4, int(f"{size:.2e}".partition("e")[2]) // 3)
    return f"{size / 1000**power:.3g} {('B', 'kB', 'MB', 'GB', 'TB')[power]}"


def parse_size(text: str) -> int:
    """Parse a number of bytes: "8GB", "512MB", "1.5 GiB", "4096"; raises ValueError otherwise."""
    found = re.fullmatch(r"(\d+\.?\d*|\.\d+)\s*(?:([kmgt]?)(i?)b?)", text.strip().lower())
    if not found or (found[3] and not found[2]):
        raise ValueError(f"{text!r} is not a size; write it as 8GB, 512MB or 4096 (bytes)")
    power = " kmgt".index(found[2] or " ")
    size = int(float(found[1]) * (1024 if found[3] else 1000) ** power)
    if size < 1:
        raise ValueError(f"{text!r} is less than a byte; pass at least some megabytes")
    return size


def parse_max_memory(value: int | str | None) -> int | None:
    """Return `max_memory` of the API as bytes. Raises UsageError for an invalid size."""
    try:
        if value is None or (type(value) is int and value > 0):
            return value
        if isinstance(value, str):
            return parse_size(value)
    except ValueError:
        pass
    raise UsageError(
        f"invalid max_memory {value!r}",
        "it must be a positive number of bytes, or a text such as '8GB'",
        "pass a valid size",
    )


def resident_bytes(process: int | str = "self") -> int:
    """Return the resident bytes of a process without mapped files; 0 if unknown."""
    try:
        with open(f"/proc/{process}/statm", "rb") as file:
            fields = file.read().split()
    except OSError:
        return 0
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")


def bytes_in_use() -> int:
    """Return the resident bytes of this process and its children."""
    size = resident_bytes()
    with suppress(OSError):
        for thread in Path("/proc/self/task").iterdir():
            size += sum(map(resident_bytes, (thread / "children").read_text().split()))
    return size


def available_memory() -> int:
    """Return the bytes that a new process may use: the least that the machine and each control
    group around this process have left."""
    found = [_machine_memory()]
    for folder in _control_groups():
        limit = _read_number(folder / "memory.max") or _read_number(
            folder / "memory.limit_in_bytes"
        )
        used = _read_number(folder / "memory.current") or _read_number(
            folder / "memory.usage_in_bytes"
        )
        if limit is not None:
            cached = _read_field(folder / "memory.stat", "inactive_file") or 0
            found.append(max(limit - max((used or 0) - cached, 0), 0))
    return min(found)


def _machine_memory() -> int:
    available = _read_field(Path("/proc/meminfo"), "MemAvailable:")
    if available is not None:
        return available * 1024
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return 8 << 30


def _control_groups() -> Iterator[Path]:
    """Yield the folders of this process's control groups, inner ones first."""
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


def _read_number(path: Path) -> int | None:
    """Return the number in a file; None if the file is missing or holds another text ("max")."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _read_field(path: Path, name: str) -> int | None:
    """Return the number after a name at the beginning of a line; None if there is none."""
    try:
        for line in path.read_text().splitlines():
            if line.split(maxsplit=1)[0:1] == [name]:
                return int(line.split()[1])
    except (OSError, ValueError, IndexError):
        pass
    return None
