"""What a run has found so far, so that one that was killed goes on where it was."""

from __future__ import annotations

import json
import os
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from superopt.errors import UsageError

if sys.platform != "win32":
    import fcntl

FORMAT = 4


class OtherRun(UsageError):
    """A file is the journal of another run, or none."""


@dataclass(slots=True)
class Journal:
    """A file of one line for each result, written as they come. In memory without a path.

    The first line says which run it is; each further one is JSON, [key, value, CRC-32 of both].
    lost: numbers of the lines that could not be read, or not as they were written: the last one is
    half-written when the process dies. What they held is found again.

    The sum tells damage: a line that was cut, or a bit that turned. It does not tell who wrote a
    line, so that whatever must be true, as that a rule is proved, is not believed from here.
    """

    path: Path | None = None
    known: dict[str, str] = field(default_factory=dict)
    lost: list[int] = field(default_factory=list)
    held: int = -1  # the file that is locked

    @staticmethod
    def open(path: Path, run: str) -> Journal:
        """The journal of a run. Raises UsageError for the file of another run, for what is no
        journal, and where the system refuses to read or write it."""
        journal = Journal(path)
        head = json.dumps({"format": FORMAT, "run": run}).encode()
        with _refused(path, "opened"):
            path.parent.mkdir(parents=True, exist_ok=True)
            journal.lock(path)
            content = path.read_bytes() if path.exists() else b""
            if head.startswith(content):  # new, or its first line is half-written
                path.write_bytes(head + b"\n")
                return journal
            if content[-1:] != b"\n":  # what is written next must not continue a line
                with path.open("ab") as file:
                    file.write(b"\n")
        first, *lines = content.split(b"\n")
        if first != head:
            raise OtherRun(
                f"{path} is the journal of another run"
                if first.startswith(b'{"format": ')
                else f"{path} is no journal of the rule generator",
                f"it begins with {first[:200].decode('utf-8', 'backslashreplace')!r},"
                f" that of this run with {head.decode()!r}",
                "give another folder, or remove the file",
            )
        for number, line in enumerate(lines, 2):
            found = _read(line) if line else None
            if found is not None:
                journal.known[found[0]] = found[1]
            elif line:
                journal.lost.append(number)
        return journal

    def lock(self, path: Path) -> None:
        """Hold the file, as long as the journal is there. Raises UsageError where another process
        does."""
        self.held = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        if sys.platform == "win32":
            return
        try:
            fcntl.flock(self.held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"{path} is in use", "another run writes it", "wait for it, or give another folder"
            ) from None

    def close(self) -> None:
        """Let others have the file."""
        if self.held >= 0:
            os.close(self.held)
        self.held = -1

    def __del__(self) -> None:
        self.close()

    def add(self, key: str, value: str) -> None:
        """Keep a result. Raises UsageError where it cannot be written."""
        self.known[key] = value
        if self.path is None:
            return
        line = json.dumps([key, value, _sum(key, value)]) + "\n"
        with _refused(self.path, "written"), self.path.open("ab") as file:
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())


def _sum(key: str, value: str) -> int:
    return zlib.crc32(f"{key}\n{value}".encode())


def _read(line: bytes) -> tuple[str, str] | None:
    """A result; None for a line that is not as it was written."""
    try:
        match json.loads(line):
            case [str(key), str(value), int(check)] if check == _sum(key, value):
                return key, value
    except (ValueError, RecursionError):
        pass
    return None


@contextmanager
def _refused(path: Path, what: str) -> Iterator[None]:
    """Raises UsageError where the system refuses."""
    try:
        yield
    except OSError as e:
        raise UsageError(
            f"{path} cannot be {what}",
            e.strerror or str(e),
            "check its folder and the space on the disk; what was found before is not lost,"
            " the same call goes on with it",
        ) from e
