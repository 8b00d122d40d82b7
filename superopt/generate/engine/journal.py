"""The journal of a run, from which a killed run continues."""

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


class WrongJournal(UsageError):
    """A file is the journal of another run, or not a journal."""


@dataclass(slots=True)
class Journal:
    """A file with one line for each result, written as they arrive; in memory without a path.

    The first line identifies the run; each further one is JSON, [key, value, CRC-32 of both]. lost:
    numbers of unreadable or damaged lines, such as a half-written last line; their results are
    computed again. The checksum detects damage, not forgery, so whatever must be true, such as that
    a rule is proved, is not taken from here.
    """

    path: Path | None = None
    known: dict[str, str] = field(default_factory=dict)
    lost: list[int] = field(default_factory=list)
    lock_file: int = -1  # the locked file

    @staticmethod
    def open(path: Path, run: str) -> Journal:
        """Open the journal of a run. Raises UsageError for the file of another run, for another
        kind of file, and if it cannot be read or written."""
        journal = Journal(path)
        head = json.dumps({"format": FORMAT, "run": run}).encode()
        with _file_errors(path, "opened"):
            path.parent.mkdir(parents=True, exist_ok=True)
            journal.lock(path)
            content = path.read_bytes() if path.exists() else b""
            if head.startswith(content):  # new, or with a half-written first line
                path.write_bytes(head + b"\n")
                return journal
            if content[-1:] != b"\n":  # the next write must not continue a line
                with path.open("ab") as file:
                    file.write(b"\n")
        first, *lines = content.split(b"\n")
        if first != head:
            raise WrongJournal(
                f"{path} is the journal of another run"
                if first.startswith(b'{"format": ')
                else f"{path} is not a journal of the rule generator",
                f"it begins with {first[:200].decode('utf-8', 'backslashreplace')!r},"
                f" that of this run with {head.decode()!r}",
                "choose another folder, or remove the file",
            )
        for number, line in enumerate(lines, 2):
            found = _parse_line(line) if line else None
            if found is not None:
                journal.known[found[0]] = found[1]
            elif line:
                journal.lost.append(number)
        return journal

    def lock(self, path: Path) -> None:
        """Lock the file while the journal is open. Raises UsageError if another process holds
        it."""
        self.lock_file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        if sys.platform == "win32":
            return
        try:
            fcntl.flock(self.lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"{path} is in use",
                "another run is writing it",
                "wait for it, or choose another folder",
            ) from None

    def close(self) -> None:
        """Unlock the file."""
        if self.lock_file >= 0:
            os.close(self.lock_file)
        self.lock_file = -1

    def __del__(self) -> None:
        self.close()

    def add(self, key: str, value: str) -> None:
        """Store a result. Raises UsageError if it cannot be written."""
        self.known[key] = value
        if self.path is None:
            return
        line = json.dumps([key, value, _checksum(key, value)]) + "\n"
        with _file_errors(self.path, "written"), self.path.open("ab") as file:
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())


def _checksum(key: str, value: str) -> int:
    return zlib.crc32(f"{key}\n{value}".encode())


def _parse_line(line: bytes) -> tuple[str, str] | None:
    """Parse a result; None for a damaged line."""
    try:
        match json.loads(line):
            case [str(key), str(value), int(check)] if check == _checksum(key, value):
                return key, value
    except (ValueError, RecursionError):
        pass
    return None


@contextmanager
def _file_errors(path: Path, action: str) -> Iterator[None]:
    """Convert OSError to UsageError."""
    try:
        yield
    except OSError as e:
        raise UsageError(
            f"{path} cannot be {action}",
            e.strerror or str(e),
            "check its folder and the free disk space; earlier results are kept, and the "
            "same call continues with them",
        ) from e
