"""The store of measurements: an SQLite file.

Losing it costs only time. So if anything fails with the file, the store continues in memory and
records the reason (`Store.notes`); it does not raise.

It is safe for concurrent processes and for the death of any of them at any time: each `put` is one
transaction under SQLite's rollback journal. (A write-ahead log needs shared memory, which does not
work on network mounts.)
"""

import json
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from superopt.cost import store_schema
from superopt.cost.cache_folders import STORE_FILE_NAME as STORE_FILE_NAME
from superopt.cost.cache_folders import default_folder as default_folder
from superopt.cost.cache_folders import store_path
from superopt.cost.machine import Machine
from superopt.errors import UsageError

Times = tuple[tuple[float, ...], ...]
"""Whole-graph timings: for each graph a time in us for each round."""
_T = TypeVar("_T")


GPU_THREADS = 0  # threads of a target that is a GPU, whose name is in the field of the processor's


@dataclass(frozen=True, slots=True)
class Target:
    """A runtime on a kind of machine: measurements of one target say nothing about another."""

    runtime: str
    version: str
    cpu: str
    flags_digest: str
    threads: int

    @classmethod
    def for_machine(cls, machine: Machine, runtime: str, version: str, threads: int) -> Self:
        """Return the target of `runtime` on this kind of machine."""
        return cls(runtime, version, machine.cpu, machine.flags_digest, threads)


@dataclass(frozen=True, slots=True)
class Key:
    """Everything that the time of one operator (or one kernel) depends on."""

    kind: str
    operator: str  # its text, with all attributes
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    target: Target


@dataclass(frozen=True, slots=True)
class Measurement:
    """A time in us: median, 10th and 90th percentile of `runs` runs, and the Unix time of the
    measurement.

    machine: the machine that measured, if it differs from the key's (`Store.import_`).
    """

    us_median: float
    us_low: float
    us_high: float
    runs: int
    when: float
    machine: str = ""


@dataclass(frozen=True, slots=True)
class Stats:
    """The contents of a store; for a store in memory `path` is None and `reason` says why."""

    path: Path | None
    reason: str
    operators: int
    graphs: int
    size: int  # bytes on disk
    targets: tuple[Target, ...]


class Store:
    """An open store; a context manager; thread-safe.

    `path` is its file. If that cannot be used, `path` is None, `reason` says why, and the store is
    in memory, with what could be read.
    """

    def __init__(
        self, connection: sqlite3.Connection, path: Path | None, reason: str, notes: Iterable[str]
    ) -> None:
        self.path = path
        self.reason = reason
        self._db = connection
        self._notes = list(notes)
        self._lock = threading.RLock()

    @classmethod
    def open(cls, path: Path | str | None = None) -> "Store":
        """Open or create the store at `path`: a file, a folder that contains one, or the default.

        A corrupt file is renamed and replaced by a new one; if the path is not writable, the store
        is in memory, with what can be read.
        """
        place = store_path(path)
        notes: list[str] = []
        connection, reason = store_schema.open_store(place, notes)
        if reason:
            notes.append(f"measurements are kept in memory only: {reason}")
        return cls(connection, None if reason else place, reason, notes)

    @classmethod
    def in_memory(cls) -> "Store":
        """Return a store without a file."""
        return cls(store_schema.open_in_memory(), None, "it was opened in memory", ())

    @property
    def notes(self) -> tuple[str, ...]:
        """Return notes for the user: that a file was renamed, or is not written, and why."""
        return tuple(self._notes)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; the store cannot be used afterwards."""
        with self._lock:
            self._db.close()

    def get(self, keys: Sequence[Key]) -> dict[Key, Measurement]:
        """Return the existing measurements, by key."""
        rows = self._run(
            lambda db: store_schema.find_operators(db, [_key_row(key) for key in keys])
        )
        return {
            key: _measurement_from_row(row)
            for key, row in zip(keys, rows, strict=True)
            if row is not None
        }

    def measurements_of_kind(self, target: Target, kind: str) -> list[tuple[Key, Measurement]]:
        """Return all measurements of this kind, in no particular order."""
        rows = self._run(lambda db: store_schema.operators_of_kind(db, _target_row(target), kind))
        return [
            (
                _key_from_row(row[: store_schema.KEY_COLUMN_COUNT]),
                _measurement_from_row(row[store_schema.KEY_COLUMN_COUNT :]),
            )
            for row in rows
        ]

    def put(self, rows: Mapping[Key, Measurement] | Iterable[tuple[Key, Measurement]]) -> None:
        """Store measurements in one transaction, replacing older ones of the same keys."""
        written = [(*_key_row(key), *_value_row(value)) for key, value in dict(rows).items()]
        if written:
            self._run(lambda db: store_schema.put_rows(db, written, [], replace=True))

    def get_graphs(self, target: Target, digests: Sequence[str]) -> Times | None:
        """Return the times of whole graphs that were measured together, in the order of
        `digests`."""
        key = (*_target_row(target), json.dumps(list(digests)))
        text = self._run(lambda db: store_schema.find_graphs(db, key))
        return None if text is None else tuple(tuple(rounds) for rounds in json.loads(text))

    def put_graphs(
        self, target: Target, digests: Sequence[str], times: Sequence[Sequence[float]], when: float
    ) -> None:
        """Store the times in us of graphs that were measured together, a list of rounds for each.

        A digest covers all that a graph's time depends on, including the sizes of its inputs.
        """
        if len(digests) != len(times):
            raise UsageError(
                "each graph needs its own times",
                f"there are {len(digests)} digests and {len(times)} lists of times",
                "pass a list for each digest",
            )
        rounds = json.dumps([list(map(float, row)) for row in times])
        row = (*_target_row(target), json.dumps(list(digests)), rounds, float(when))
        self._run(lambda db: store_schema.put_rows(db, [], [row], replace=True))

    def stats(self) -> Stats:
        """Return the contents of the store."""
        operators, graphs = self._run(store_schema.count_rows)
        targets = tuple(_target_from_row(row) for row in self._run(store_schema.all_targets))
        size = 0
        if self.path is not None:
            with suppress(OSError):
                size = self.path.stat().st_size
        return Stats(self.path, self.reason, operators, graphs, size, targets)

    def clear(self) -> int:
        """Delete everything; return how many measurements there were.

        Raises UsageError for a file that is not writable.
        """
        operators, graphs = self._run(store_schema.count_rows)
        self._run(store_schema.delete_rows)
        if self.path is None and self._notes:
            raise UsageError(
                "the store was not cleared", self.reason, "make it writable, or delete the file"
            )
        return operators + graphs

    def export(self, path: Path | str) -> int:
        """Write everything to a new file for another machine; return how many measurements.

        Raises UsageError if the file exists or the path is not writable.
        """
        place = Path(path)
        if place.exists():
            raise UsageError(
                f"{place} exists", "an export does not overwrite files", "choose a new file"
            )
        part = place.with_name(f".{place.name}.{os.getpid()}.part")
        operators, graphs = self._run(
            lambda db: (store_schema.all_operators(db), store_schema.all_graphs(db))
        )
        try:
            with closing(store_schema.create_store(part)) as copy:
                store_schema.put_rows(copy, operators, graphs, replace=True)
            os.replace(part, place)
        except (OSError, sqlite3.Error) as error:
            part.unlink(missing_ok=True)
            raise UsageError(
                f"{place} was not written", str(error), "choose a writable path"
            ) from error
        return len(operators) + len(graphs)

    def import_(self, path: Path | str, machine: Machine, *, other_machine: bool = False) -> int:
        """Add the measurements of an exported file that are missing here; return how many.

        Takes only those of the same kind of machine as `machine`, and those of any GPU. With
        `other_machine` it takes those of other kinds too, as if they had been measured here, each
        with the name of its machine; but not the times of whole graphs, which decide what is faster
        here. Raises UsageError if nothing is of this kind of machine and for a file that is not a
        store.
        """
        with closing(store_schema.open_read_only(Path(path))) as source:
            operators, graphs = store_schema.all_operators(source), store_schema.all_graphs(source)
            on = [
                t
                for t in map(_target_from_row, store_schema.all_targets(source))
                if t.threads != GPU_THREADS
            ]
            kinds = {(target.cpu, target.flags_digest) for target in on}
        here = (machine.cpu, machine.flags_digest)
        if kinds and here not in kinds and not other_machine:
            there = "; ".join(f"{cpu} (flags {flags or 'unknown'})" for cpu, flags in sorted(kinds))
            raise UsageError(
                f"{path} was measured on another kind of machine",
                f"there: {there}; here: {machine.kind}",
                "measure here, or allow another machine's measurements",
            )
        taken = [_as_local_row(row, here) for row in operators
                 if other_machine or row[2:4] == here or row[4] == GPU_THREADS]  # fmt: skip
        same = [row for row in graphs if row[2:4] == here]
        before = self._run(store_schema.count_rows)
        try:
            self._run(lambda db: store_schema.put_rows(db, taken, same, replace=False))
        except sqlite3.IntegrityError as error:
            raise UsageError(
                f"{path} contains invalid measurements", str(error), "export it again"
            ) from error
        return sum(self._run(store_schema.count_rows)) - sum(before)

    def _run(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """Run `work` on the file, or, once the file fails, in memory."""
        with self._lock:
            try:
                return work(self._db)
            except (sqlite3.IntegrityError, sqlite3.ProgrammingError):
                raise  # an error of the caller, not of the file
            except sqlite3.Error as error:
                if self.path is None:
                    raise
                self.reason = f"{self.path}: {error}"
                self._notes.append(f"measurements are kept in memory from here on: {self.reason}")
                self.path = None
                self._db = _rescue(self._db)
                return work(self._db)


def _rescue(db: sqlite3.Connection) -> sqlite3.Connection:
    """Return a store in memory with what can still be read."""
    memory = store_schema.open_in_memory()
    with suppress(sqlite3.Error), closing(db):
        store_schema.copy_rows(db, memory)
    return memory


def _target_row(target: Target) -> store_schema.Row:
    return (target.runtime, target.version, target.cpu, target.flags_digest, target.threads)


def _target_from_row(row: store_schema.Row) -> Target:
    runtime, version, cpu, flags, threads = row
    return Target(str(runtime), str(version), str(cpu), str(flags), int(threads))


def _key_row(key: Key) -> store_schema.Row:
    shapes = json.dumps([list(map(int, shape)) for shape in key.shapes], separators=(",", ":"))
    return (*_target_row(key.target), key.kind, key.operator, shapes, " ".join(key.dtypes))


def _key_from_row(row: store_schema.Row) -> Key:
    *target, kind, operator, shapes, dtypes = row
    numbers = tuple(tuple(map(int, shape)) for shape in json.loads(str(shapes)))
    return Key(
        str(kind),
        str(operator),
        numbers,
        tuple(str(dtypes).split()),
        _target_from_row(tuple(target)),
    )


def _value_row(value: Measurement) -> store_schema.Row:
    times = (float(value.us_median), float(value.us_low), float(value.us_high))
    return (*times, int(value.runs), float(value.when), value.machine)


def _measurement_from_row(row: store_schema.Row) -> Measurement:
    median, low, high, runs, when, machine = row
    times = (float(median), float(low), float(high))
    return Measurement(*times, int(runs), float(when), str(machine))


def _as_local_row(row: store_schema.Row, here: tuple[str, str]) -> store_schema.Row:
    """Return a measurement of another machine as one of this, with that machine's name."""
    if row[2:4] == here or row[4] == GPU_THREADS:
        return row
    return (*row[:2], *here, *row[4:-1], row[-1] or f"{row[2]} (flags {row[3] or 'unknown'})")
