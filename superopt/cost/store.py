"""Measurements, kept from one run to the next in an SQLite file.

Losing it costs time and nothing else, so whatever goes wrong with the file, the store goes on in
memory and says why (`Store.notes`); it never raises for that.

Safe for several processes at once and for the end of any of them at any time: each `put` is one
transaction under SQLite's rollback journal.  (Not a write-ahead log, whose shared memory does not
work where home directories are network mounts.)
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

from superopt.cost import schema
from superopt.cost.folder import FILE as FILE
from superopt.cost.folder import default_folder as default_folder
from superopt.cost.folder import store_file
from superopt.cost.machine import Machine
from superopt.errors import UsageError

Times = tuple[tuple[float, ...], ...]
"""Whole-graph timings: for each graph a time in us for each round."""
_T = TypeVar("_T")


GPU = 0  # threads, of what runs on one: its name is then in the place of the processor's


@dataclass(frozen=True, slots=True)
class Target:
    """What runs a graph, and where: measurements of one target say nothing about another."""

    runtime: str
    version: str
    cpu: str
    flags_digest: str
    threads: int

    @classmethod
    def on(cls, machine: Machine, runtime: str, version: str, threads: int) -> Self:
        """The target that is `runtime` on this kind of machine."""
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
class Measured:
    """A time in us: median, 10th and 90th percentile of `runs` runs, and the Unix time when.

    `machine` names the one that measured where it was another than the key says (`Store.import_`).
    """

    us_median: float
    us_low: float
    us_high: float
    runs: int
    when: float
    machine: str = ""


@dataclass(frozen=True, slots=True)
class Stats:
    """What a store holds; where it is in memory `path` is None and `reason` says why."""

    path: Path | None
    reason: str
    operators: int
    graphs: int
    size: int  # bytes on disk
    targets: tuple[Target, ...]


class Store:
    """An open store.  A context manager; may be used from several threads.

    `path` is its file.  Where that cannot be used `path` is None, `reason` says why, and the store
    is in memory, with whatever could be read.
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
        """Opens or creates the store at `path`: a file, a folder that holds one, or the default.

        A corrupt file is renamed and begun anew; where the place cannot be written the store is in
        memory, on top of what can be read.
        """
        place = store_file(path)
        notes: list[str] = []
        connection, reason = schema.opened(place, notes)
        if reason:
            notes.append(f"measurements are kept in memory only: {reason}")
        return cls(connection, None if reason else place, reason, notes)

    @classmethod
    def in_memory(cls) -> "Store":
        """A store without a file, on purpose."""
        return cls(schema.in_memory(), None, "it was opened in memory", ())

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know: that a file was moved aside, or is not written, and why."""
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
        """Closes the file; the store cannot be used afterwards."""
        with self._lock:
            self._db.close()

    def get(self, keys: Sequence[Key]) -> dict[Key, Measured]:
        """The measurements that are there, by key."""
        rows = self._do(lambda db: schema.find_operators(db, [_key_row(key) for key in keys]))
        return {key: _measured(row) for key, row in zip(keys, rows, strict=True) if row is not None}

    def of_kind(self, target: Target, kind: str) -> list[tuple[Key, Measured]]:
        """All measurements of this kind, in no order that means anything."""
        rows = self._do(lambda db: schema.operators_of(db, _target_row(target), kind))
        return [(_key(row[: schema.KEY]), _measured(row[schema.KEY :])) for row in rows]

    def put(self, rows: Mapping[Key, Measured] | Iterable[tuple[Key, Measured]]) -> None:
        """Keeps measurements in one transaction, instead of older ones of the same keys."""
        written = [(*_key_row(key), *_value_row(value)) for key, value in dict(rows).items()]
        if written:
            self._do(lambda db: schema.put(db, written, [], replace=True))

    def get_graphs(self, target: Target, digests: Sequence[str]) -> Times | None:
        """The times of whole graphs that were measured together, in the order of `digests`."""
        key = (*_target_row(target), json.dumps(list(digests)))
        text = self._do(lambda db: schema.find_graphs(db, key))
        return None if text is None else tuple(tuple(rounds) for rounds in json.loads(text))

    def put_graphs(
        self, target: Target, digests: Sequence[str], times: Sequence[Sequence[float]], when: float
    ) -> None:
        """Keeps the times in us of graphs that were measured together, a list of rounds for each.

        A digest says all that a graph's time depends on, the sizes of its inputs included.
        """
        if len(digests) != len(times):
            raise UsageError(
                "each graph has its own times",
                f"there are {len(digests)} digests and {len(times)} lists of times",
                "give a list for each digest",
            )
        rounds = json.dumps([list(map(float, row)) for row in times])
        row = (*_target_row(target), json.dumps(list(digests)), rounds, float(when))
        self._do(lambda db: schema.put(db, [], [row], replace=True))

    def stats(self) -> Stats:
        """What is in the store."""
        operators, graphs = self._do(schema.counts)
        targets = tuple(_target(row) for row in self._do(schema.targets))
        size = 0
        if self.path is not None:
            with suppress(OSError):
                size = self.path.stat().st_size
        return Stats(self.path, self.reason, operators, graphs, size, targets)

    def clear(self) -> int:
        """Forgets everything; returns how many measurements that were.

        Raises UsageError for a file that cannot be written.
        """
        operators, graphs = self._do(schema.counts)
        self._do(schema.clear)
        if self.path is None and self._notes:
            raise UsageError(
                "the store was not cleared", self.reason, "make it writable, or delete the file"
            )
        return operators + graphs

    def export(self, path: Path | str) -> int:
        """Writes everything to a new file for another machine; returns how many measurements.

        Raises UsageError where a file exists or the place cannot be written.
        """
        place = Path(path)
        if place.exists():
            raise UsageError(
                f"{place} exists", "an export does not overwrite files", "name a new file"
            )
        part = place.with_name(f".{place.name}.{os.getpid()}.part")
        operators, graphs = self._do(lambda db: (schema.all_operators(db), schema.all_graphs(db)))
        try:
            with closing(schema.created(part)) as copy:
                schema.put(copy, operators, graphs, replace=True)
            os.replace(part, place)
        except (OSError, sqlite3.Error) as error:
            part.unlink(missing_ok=True)
            raise UsageError(
                f"{place} was not written", str(error), "name a place that can be written"
            ) from error
        return len(operators) + len(graphs)

    def import_(self, path: Path | str, machine: Machine, *, other_machine: bool = False) -> int:
        """Adds the measurements in an exported file, where there are none; returns how many.

        Only those of the same kind of machine as `machine` are taken, and those of any GPU.  With
        `other_machine` those of other kinds are too, as if they had been measured here, and each
        names the machine that it is from; but not the times of whole graphs, which decide what is
        faster here.

        Raises UsageError where nothing is of this kind of machine and for a file that is no store.
        """
        with closing(schema.read_only(Path(path))) as source:
            operators, graphs = schema.all_operators(source), schema.all_graphs(source)
            on = [t for t in map(_target, schema.targets(source)) if t.threads != GPU]
            kinds = {(target.cpu, target.flags_digest) for target in on}
        here = (machine.cpu, machine.flags_digest)
        if kinds and here not in kinds and not other_machine:
            there = "; ".join(f"{cpu} (flags {flags or 'unknown'})" for cpu, flags in sorted(kinds))
            raise UsageError(
                f"{path} was measured on another kind of machine",
                f"there: {there}; here: {machine.kind}",
                "measure here, or say that another machine's measurements will do",
            )
        taken = [_moved(row, here) for row in operators
                 if other_machine or row[2:4] == here or row[4] == GPU]  # fmt: skip
        same = [row for row in graphs if row[2:4] == here]
        before = self._do(schema.counts)
        try:
            self._do(lambda db: schema.put(db, taken, same, replace=False))
        except sqlite3.IntegrityError as error:
            raise UsageError(
                f"{path} holds values that are no measurements", str(error), "export it again"
            ) from error
        return sum(self._do(schema.counts)) - sum(before)

    def _do(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """Does the work on the file, or, when the file fails, from then on in memory."""
        with self._lock:
            try:
                return work(self._db)
            except (sqlite3.IntegrityError, sqlite3.ProgrammingError):
                raise  # our own fault, not the file's
            except sqlite3.Error as error:
                if self.path is None:
                    raise
                self.reason = f"{self.path}: {error}"
                self._notes.append(f"measurements are kept in memory from here on: {self.reason}")
                self.path = None
                self._db = _rescued(self._db)
                return work(self._db)


def _rescued(db: sqlite3.Connection) -> sqlite3.Connection:
    """A store in memory with what can still be read."""
    memory = schema.in_memory()
    with suppress(sqlite3.Error), closing(db):
        schema.copy(db, memory)
    return memory


def _target_row(target: Target) -> schema.Row:
    return (target.runtime, target.version, target.cpu, target.flags_digest, target.threads)


def _target(row: schema.Row) -> Target:
    runtime, version, cpu, flags, threads = row
    return Target(str(runtime), str(version), str(cpu), str(flags), int(threads))


def _key_row(key: Key) -> schema.Row:
    shapes = json.dumps([list(map(int, shape)) for shape in key.shapes], separators=(",", ":"))
    return (*_target_row(key.target), key.kind, key.operator, shapes, " ".join(key.dtypes))


def _key(row: schema.Row) -> Key:
    *target, kind, operator, shapes, dtypes = row
    numbers = tuple(tuple(map(int, shape)) for shape in json.loads(str(shapes)))
    return Key(
        str(kind), str(operator), numbers, tuple(str(dtypes).split()), _target(tuple(target))
    )


def _value_row(value: Measured) -> schema.Row:
    times = (float(value.us_median), float(value.us_low), float(value.us_high))
    return (*times, int(value.runs), float(value.when), value.machine)


def _measured(row: schema.Row) -> Measured:
    median, low, high, runs, when, machine = row
    times = (float(median), float(low), float(high))
    return Measured(*times, int(runs), float(when), str(machine))


def _moved(row: schema.Row, here: tuple[str, str]) -> schema.Row:
    """A measurement of another machine as one of this, with that machine's name."""
    if row[2:4] == here or row[4] == GPU:
        return row
    return (*row[:2], *here, *row[4:-1], row[-1] or f"{row[2]} (flags {row[3] or 'unknown'})")
