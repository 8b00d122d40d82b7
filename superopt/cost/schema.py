"""The store's SQLite file: its tables, and how it is opened whatever state it is in."""

import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from superopt.errors import UsageError

VERSION = 1
APPLICATION = 0x53504F54  # SQLite's mark of whose file it is: "SPOT"
_BUSY_SECONDS = 10.0

Row = tuple[str | int | float, ...]

# Five columns say what ran where; what they leave open follows.
_TARGET = ("runtime", "version", "cpu", "flags", "threads")
_KEY = (*_TARGET, "kind", "operator", "shapes", "dtypes")
KEY = len(_KEY)  # columns that say what was measured
_OPERATOR = (*_KEY, "us_median", "us_low", "us_high", "runs", "at", "machine")
_GRAPH = (*_TARGET, "digests", "times", "at")

_CREATE = f"""
CREATE TABLE operator (
  runtime TEXT NOT NULL, version TEXT NOT NULL, cpu TEXT NOT NULL, flags TEXT NOT NULL,
  threads INTEGER NOT NULL CHECK (typeof(threads) = 'integer'),
  kind TEXT NOT NULL, operator TEXT NOT NULL, shapes TEXT NOT NULL, dtypes TEXT NOT NULL,
  us_median REAL NOT NULL CHECK (typeof(us_median) = 'real' AND us_median >= 0),
  us_low REAL NOT NULL CHECK (typeof(us_low) = 'real' AND us_low >= 0),
  us_high REAL NOT NULL CHECK (typeof(us_high) = 'real' AND us_high >= 0),
  runs INTEGER NOT NULL CHECK (typeof(runs) = 'integer' AND runs > 0),
  at REAL NOT NULL CHECK (typeof(at) = 'real'), machine TEXT NOT NULL,
  PRIMARY KEY ({", ".join(_KEY)})
) WITHOUT ROWID;
CREATE TABLE graph (
  runtime TEXT NOT NULL, version TEXT NOT NULL, cpu TEXT NOT NULL, flags TEXT NOT NULL,
  threads INTEGER NOT NULL CHECK (typeof(threads) = 'integer'),
  digests TEXT NOT NULL, times TEXT NOT NULL, at REAL NOT NULL CHECK (typeof(at) = 'real'),
  PRIMARY KEY ({", ".join((*_TARGET, "digests"))})
) WITHOUT ROWID;
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = {VERSION};
"""


class Unusable(Exception):
    """A file that is no store of this version; says what it is instead."""


class Corrupt(Exception):
    """A store whose file is damaged."""


def in_memory() -> sqlite3.Connection:
    """An empty store without a file."""
    return _created(_connect(":memory:"))


def opened(path: Path, notes: list[str]) -> tuple[sqlite3.Connection, str]:
    """The store in a file, created where there is none, and "".

    Where that cannot be written, a store in memory with what could be read, and the reason.  A
    corrupt file is moved aside first, which is noted in `notes`.
    """
    reason = ""
    for _ in range(3):  # moved aside, perhaps by another process, and begun anew
        before = _identity(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            return _open(path), ""
        except Corrupt as error:
            reason = f"{path} is corrupt: {error}"
            if before is not None and _identity(path) == before:
                try:
                    aside = _move_aside(path)
                except OSError as failure:
                    return in_memory(), f"{reason}; it cannot be renamed: {failure.strerror}"
                notes.append(f"{reason}; it was renamed to {aside.name} and begun anew")
        except Unusable as error:
            return in_memory(), f"{path} {error}"
        except OSError as error:
            return in_memory(), f"{path.parent}: {error.strerror or error}"
        except sqlite3.Error as error:
            return _readable(path), f"{path} cannot be written: {error}"
    return in_memory(), reason


def read_only(path: Path) -> sqlite3.Connection:
    """The store in a file that is not changed.  Raises UsageError for any other file."""
    try:
        connection = _connect(path.resolve().as_uri() + "?mode=ro")
        try:
            if not _inspect(connection):
                raise Unusable("is empty")
        except BaseException:
            connection.close()
            raise
    except (Unusable, Corrupt, sqlite3.Error) as error:
        why = f"it {error}" if isinstance(error, Unusable) else f"damage: {error}"
        raise UsageError(
            f"{path} is no store of measurements", why, "name a file that was exported"
        ) from error
    return connection


def created(path: Path) -> sqlite3.Connection:
    """A new store in a file that does not exist."""
    return _created(_connect(path.resolve().as_uri()))


def _connect(place: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        place, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False, uri=True
    )
    # A file from elsewhere: its schema may not call functions with effects.
    connection.execute("PRAGMA trusted_schema = OFF")
    return connection


def _created(connection: sqlite3.Connection) -> sqlite3.Connection:
    try:
        with transaction(connection):
            # Looked at again, now that no other process can create the same tables.
            if not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                for statement in filter(str.strip, _CREATE.split(";\n")):
                    connection.execute(statement)
    except BaseException:
        connection.close()
        raise
    return connection


def _open(path: Path) -> sqlite3.Connection:
    connection = _connect(path.resolve().as_uri())
    try:
        if not _inspect(connection):
            return _created(connection)
        # Whether it can be written shows when it is: nothing changes here.
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("ROLLBACK")
    except BaseException:
        connection.close()
        raise
    return connection


def _inspect(connection: sqlite3.Connection) -> bool:
    """Whether the file holds a store; False for an empty file.

    Raises Unusable for other databases and versions, Corrupt for damage.
    """
    try:
        ((application,),) = connection.execute("PRAGMA application_id")
        ((version,),) = connection.execute("PRAGMA user_version")
        ((tables,),) = connection.execute("SELECT count(*) FROM sqlite_master")
        if not application and not version and not tables:
            return False
        if application != APPLICATION:
            raise Unusable("is the database of another program")
        if version > VERSION:
            raise Unusable(
                f"was written by a newer superopt (version {version} of the tables, "
                f"this one knows {VERSION})"
            )
        _check_length(connection)
        findings = [text for (text,) in connection.execute("PRAGMA quick_check(3)")]
        if findings != ["ok"]:
            raise Corrupt("; ".join(" ".join(text.split()) for text in findings))
        for table, columns in (("operator", _OPERATOR), ("graph", _GRAPH)):
            connection.execute(f"SELECT {', '.join(columns)} FROM {table} LIMIT 0")
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_NOTADB and not _own(connection):
            raise Unusable("is no database of SQLite") from error
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR):
            raise Corrupt(str(error)) from error
        raise
    return True


def _own(connection: sqlite3.Connection) -> bool:
    """Is the file named as stores are? One of another name that is no database is not ours."""
    ((_, _, name),) = connection.execute("PRAGMA database_list")
    return str(name).endswith(".sqlite3")


def _check_length(connection: sqlite3.Connection) -> None:
    """Raises Corrupt for a file that is shorter than it says; SQLite would read zeros there."""
    ((_, _, name),) = connection.execute("PRAGMA database_list")
    connection.execute("BEGIN")  # nobody writes pages meanwhile
    try:
        ((pages,),) = connection.execute("PRAGMA page_count")
        ((page,),) = connection.execute("PRAGMA page_size")
        size = os.stat(name).st_size
    finally:
        connection.execute("ROLLBACK")
    if size < pages * page:
        raise Corrupt(f"the file ends after {size} of {pages * page} bytes")


def _readable(path: Path) -> sqlite3.Connection:
    """A store in memory with what can be read from a file that cannot be written."""
    memory = in_memory()
    with suppress(UsageError, sqlite3.Error):
        source = read_only(path)
        try:
            copy(source, memory)
        finally:
            source.close()
    return memory


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_dev, stat.st_ino


def _move_aside(path: Path) -> Path:
    number = 1
    while (aside := path.with_name(f"{path.name}.corrupt-{number}")).exists():
        number += 1
    # A journal that stayed behind would be rolled back into the new file.
    for ending in ("-journal", "-wal", "-shm"):
        with suppress(FileNotFoundError):
            os.replace(f"{path}{ending}", f"{aside}{ending}")
    with suppress(FileNotFoundError):
        os.replace(path, aside)
    return aside


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All that happens inside, or nothing of it."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):  # SQLite itself rolls back after some errors
            connection.execute("ROLLBACK")
        raise


_FIND_OPERATOR = (
    f"SELECT {', '.join(_OPERATOR[len(_KEY) :])} FROM operator "
    f"WHERE {' AND '.join(f'{column} = ?' for column in _KEY)}"
)
_FIND_GRAPHS = (
    "SELECT times FROM graph "
    f"WHERE {' AND '.join(f'{column} = ?' for column in (*_TARGET, 'digests'))}"
)


def find_operators(connection: sqlite3.Connection, keys: Sequence[Row]) -> list[Row | None]:
    """The values for each key, of one moment."""
    connection.execute("BEGIN")
    try:
        return [connection.execute(_FIND_OPERATOR, key).fetchone() for key in keys]
    finally:
        with suppress(sqlite3.Error):  # nothing to end after some errors
            connection.execute("ROLLBACK")


def operators_of(connection: sqlite3.Connection, target: Row, kind: str) -> list[Row]:
    """Every row of a kind: the key, then the values."""
    where = " AND ".join(f"{c} = ?" for c in (*_TARGET, "kind"))
    query = f"SELECT {', '.join(_OPERATOR)} FROM operator WHERE {where}"
    return connection.execute(query, (*target, kind)).fetchall()


def find_graphs(connection: sqlite3.Connection, key: Row) -> str | None:
    """The times of graphs measured together, as they were put."""
    row = connection.execute(_FIND_GRAPHS, key).fetchone()
    return None if row is None else str(row[0])


def all_operators(connection: sqlite3.Connection) -> list[Row]:
    """Every row: the key, then the values."""
    return connection.execute(f"SELECT {', '.join(_OPERATOR)} FROM operator").fetchall()


def all_graphs(connection: sqlite3.Connection) -> list[Row]:
    """Every row: target, digests, times, when."""
    return connection.execute(f"SELECT {', '.join(_GRAPH)} FROM graph").fetchall()


def targets(connection: sqlite3.Connection) -> list[Row]:
    """Every target that something was measured on."""
    columns = ", ".join(_TARGET)
    return connection.execute(
        f"SELECT {columns} FROM operator UNION SELECT {columns} FROM graph ORDER BY {columns}"
    ).fetchall()


def counts(connection: sqlite3.Connection) -> tuple[int, int]:
    """How many rows the two tables have."""
    ((operators,),) = connection.execute("SELECT count(*) FROM operator")
    ((graphs,),) = connection.execute("SELECT count(*) FROM graph")
    return operators, graphs


def put(
    connection: sqlite3.Connection,
    operators: Iterable[Row],
    graphs: Iterable[Row],
    *,
    replace: bool,
) -> None:
    """Adds rows in one transaction; those that are there are replaced or kept."""
    # Not INSERT OR IGNORE, which drops values that are no measurements without a word.
    verb, conflict = ("REPLACE", "") if replace else ("INSERT", " ON CONFLICT DO NOTHING")
    with transaction(connection):
        for table, columns, rows in (("operator", _OPERATOR, operators), ("graph", _GRAPH, graphs)):
            connection.executemany(
                f"{verb} INTO {table} ({', '.join(columns)}) "
                f"VALUES ({', '.join('?' * len(columns))}){conflict}",
                rows,
            )


def copy(source: sqlite3.Connection, target: sqlite3.Connection) -> None:
    """Adds all rows of one store to another.  (Not by SQLite's backup, which waits for ever.)"""
    put(target, all_operators(source), all_graphs(source), replace=True)


def clear(connection: sqlite3.Connection) -> None:
    """Deletes all rows, and gives the room back."""
    with transaction(connection):
        connection.execute("DELETE FROM operator")
        connection.execute("DELETE FROM graph")
    with suppress(sqlite3.Error):  # somebody else may be reading
        connection.execute("VACUUM")
