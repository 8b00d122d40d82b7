"""What a run has found so far, so that one that was killed goes on where it was."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from superopt.errors import UsageError

FORMAT = 1


@dataclass(slots=True)
class Journal:
    """A file of one line for each result, written as they come. In memory without a path."""

    path: Path | None = None
    known: dict[str, str] = field(default_factory=dict)
    lost: int = 0  # lines that could not be read: a line is half-written when the process dies

    @staticmethod
    def open(path: Path, run: str) -> Journal:
        """The journal of a run. Raises UsageError for the file of another run, or of none."""
        journal = Journal(path)
        head = json.dumps({"format": FORMAT, "run": run})
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(head + "\n", encoding="utf-8")
            return journal
        lines = path.read_bytes().split(b"\n")
        if lines[0].decode("utf-8", "replace") != head:
            raise UsageError(
                f"{path} is the journal of another run",
                f"it begins with {lines[0][:80]!r}, this run is {head}",
                "give another folder, or remove the file",
            )
        for line in lines[1:]:
            if not line:
                continue
            try:
                key, value = json.loads(line)
                journal.known[str(key)] = str(value)
            except ValueError:
                journal.lost += 1
        if lines[-1]:  # no line end: what is written next must not continue it
            with path.open("ab") as file:
                file.write(b"\n")
        return journal

    def add(self, key: str, value: str) -> None:
        """Keep a result."""
        self.known[key] = value
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps([key, value]) + "\n")
                file.flush()
                os.fsync(file.fileno())
