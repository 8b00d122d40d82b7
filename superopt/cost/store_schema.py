"""The store's SQLite file: its tables, and how it is opened in any state."""

import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from superopt.errors import UsageError

SCHEMA_VERSION = 1
APPLICATION_ID = 0x53504F54  # SQLite's application id: "SPOT"
_BUSY_SECONDS = 10.0

Row = tuple[str | int | float, ...]

# Five columns identify the target; the others follow.
_TARGET = ("runtime", "version", "cpu", "flags", "threads")
_KEY = (*_TARGET, "kind", "operator", "shapes", "dtypes")
KEY_COLUMN_COUNT = len(_KEY)  # columns that identify a measurement
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
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA_VERSION};
"""


class NotAStore(Exception):
    """A file that is not a store of this version; the message says what it is."""


class CorruptStore(Exception):
    """A store with a damaged file."""


def open_in_memory() -> sqlite3.Connection:
    """Return an empty store without a file."""
    return _create_tables(_connect(":memory:"))


def open_store(path: Path, notes: list[str]) -> tuple[sqlite3.Connection, str]:
    """Open or create the store in a file; return it and "".

    If the file cannot be written, return a store in memory with what could be read, and the reason.
    A corrupt file is first renamed, which is recorded in `notes`.
    """
    reason = ""
    for _ in range(3):  # renamed, perhaps by another process, and created again
        before = _identity(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            return _open(path), ""
        except CorruptStore as error:
            reason = f"{path} is corrupt: {error}"
            if before is not None and _identity(path) == before:
                try:
                    aside = _move_aside(path)
                except OSError as failure:
                    return open_in_memory(), f"{reason}; it cannot be renamed: {failure.strerror}"
                notes.append(
                    f"{reason}; it was renamed to {aside.name}, and a new store was created"
                )
        except NotAStore as error:
            return open_in_memory(), f"{path} {error}"
        except OSError as error:
            return open_in_memory(), f"{path.parent}: {error.strerror or error}"
        except sqlite3.Error as error:
            return _copy_readable(path), f"{path} cannot be written: {error}"
    return open_in_memory(), reason


def open_read_only(path: Path) -> sqlite3.Connection:
    """Open a store read-only. Raises UsageError for any other file."""
    try:
        connection = _connect(path.resolve().as_uri() + "?mode=ro")
        try:
            if not _inspect(connection):
                raise NotAStore("is empty")
        except BaseException:
            connection.close()
            raise
    except (NotAStore, CorruptStore, sqlite3.Error) as error:
        why = f"it {error}" if isinstance(error, NotAStore) else f"damage: {error}"
        raise UsageError(
            f"{path} is not a store of measurements", why, "pass a file that was exported"
        ) from error
    return connection


def create_store(path: Path) -> sqlite3.Connection:
    """Create a store in a file that does not exist."""
    return _create_tables(_connect(path.resolve().as_uri()))


def _connect(place: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        place, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False, uri=True
    )
    # The file may be from elsewhere: its schema must not call functions with side effects.
    connection.execute("PRAGMA trusted_schema = OFF")
    return connection


def _create_tables(connection: sqlite3.Connection) -> sqlite3.Connection:
    try:
        with transaction(connection):
            # Checked again, now that no other process can create the tables.
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
            return _create_tables(connection)
        # Tests whether the file is writable; changes nothing.
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        connection.execute("ROLLBACK")
    except BaseException:
        connection.close()
        raise
    return connection


def _inspect(connection: sqlite3.Connection) -> bool:
    """Return whether the file contains a store; False for an empty file.

    Raises NotAStore for other databases and versions, CorruptStore for damage.
    """
    try:
        connection.execute("BEGIN")  # no other process creates the tables meanwhile
        try:
            ((tables,),) = connection.execute("SELECT count(*) FROM sqlite_master")
            ((application,),) = connection.execute("PRAGMA application_id")
            ((version,),) = connection.execute("PRAGMA user_version")
        finally:
            connection.execute("ROLLBACK")
        if not application and not version and not tables:
            return False
        if application != APPLICATION_ID:
            raise NotAStore("is the database of another program")
        if version > SCHEMA_VERSION:
            raise NotAStore(
                f"was written by a newer superopt (version {version} of the tables, "
                f"this one knows {SCHEMA_VERSION})"
            )
        _check_length(connection)
        findings = [text for (text,) in connection.execute("PRAGMA quick_check(3)")]
        if findings != ["ok"]:
            raise CorruptStore("; ".join(" ".join(text.split()) for text in findings))
        for table, columns in (("operator", _OPERATOR), ("graph", _GRAPH)):
            connection.execute(f"SELECT {', '.join(columns)} FROM {table} LIMIT 0")
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_NOTADB and not _has_store_name(connection):
            raise NotAStore("is not an SQLite database") from error
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR):
            raise CorruptStore(str(error)) from error
        raise
    except UnicodeDecodeError as error:  # SQLite's message has the damaged text of a table
        raise CorruptStore(str(error)) from error
    return True


def _has_store_name(connection: sqlite3.Connection) -> bool:
    """True if the file's name is that of a store. Another file that is not a database is not
    ours."""
    ((_, _, name),) = connection.execute("PRAGMA database_list")
    return str(name).endswith(".sqlite3")


def _check_length(connection: sqlite3.Connection) -> None:
    """Raise CorruptStore for a truncated file; SQLite would read zeros."""
    ((_, _, name),) = connection.execute("PRAGMA database_list")
    connection.execute("BEGIN")  # no writer can change pages meanwhile
    try:
        ((pages,),) = connection.execute("PRAGMA page_count")
        ((page,),) = connection.execute("PRAGMA page_size")
        size = os.stat(name).st_size
    finally:
        connection.execute("ROLLBACK")
    if size < pages * page:
        raise CorruptStore(f"the file ends after {size} of {pages * page} bytes")


def _copy_readable(path: Path) -> sqlite3.Connection:
    """Return a store in memory with what can be read from a file that cannot be written."""
    memory = open_in_memory()
    with suppress(UsageError, sqlite3.Error):
        source = open_read_only(path)
        try:
            copy_rows(source, memory)
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
    # A remaining journal would be rolled back into the new file.
    for ending in ("-journal", "-wal", "-shm"):
        with suppress(FileNotFoundError):
            os.replace(f"{path}{ending}", f"{aside}{ending}")
    with suppress(FileNotFoundError):
        os.replace(path, aside)
    return aside


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Run the statements inside in one transaction."""
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
    """Return the values of each key in one snapshot."""
    connection.execute("BEGIN")
    try:
        return [connection.execute(_FIND_OPERATOR, key).fetchone() for key in keys]
    finally:
        with suppress(sqlite3.Error):  # after some errors no transaction is open
            connection.execute("ROLLBACK")


def operators_of_kind(connection: sqlite3.Connection, target: Row, kind: str) -> list[Row]:
    """Return every row of a kind: the key, then the values."""
    where = " AND ".join(f"{c} = ?" for c in (*_TARGET, "kind"))
    query = f"SELECT {', '.join(_OPERATOR)} FROM operator WHERE {where}"
    return connection.execute(query, (*target, kind)).fetchall()


def find_graphs(connection: sqlite3.Connection, key: Row) -> str | None:
    """Return the times of graphs that were measured together, as stored."""
    row = connection.execute(_FIND_GRAPHS, key).fetchone()
    return None if row is None else str(row[0])


def all_operators(connection: sqlite3.Connection) -> list[Row]:
    """Return every row: the key, then the values."""
    return connection.execute(f"SELECT {', '.join(_OPERATOR)} FROM operator").fetchall()


def all_graphs(connection: sqlite3.Connection) -> list[Row]:
    """Return every row: target, digests, times, when."""
    return connection.execute(f"SELECT {', '.join(_GRAPH)} FROM graph").fetchall()


def all_targets(connection: sqlite3.Connection) -> list[Row]:
    """Return every target with measurements."""
    columns = ", ".join(_TARGET)
    return connection.execute(
        f"SELECT {columns} FROM operator UNION SELECT {columns} FROM graph ORDER BY {columns}"
    ).fetchall()


def count_rows(connection: sqlite3.Connection) -> tuple[int, int]:
    """Return the number of rows of the two tables."""
    ((operators,),) = connection.execute("SELECT count(*) FROM operator")
    ((graphs,),) = connection.execute("SELECT count(*) FROM graph")
    return operators, graphs


def put_rows(
    connection: sqlite3.Connection,
    operators: Iterable[Row],
    graphs: Iterable[Row],
    *,
    replace: bool,
) -> None:
    """Add rows in one transaction; existing ones are replaced or kept."""
    # Not INSERT OR IGNORE, which silently drops rows that violate a constraint.
    verb, conflict = ("REPLACE", "") if replace else ("INSERT", " ON CONFLICT DO NOTHING")
    with transaction(connection):
        for table, columns, rows in (("operator", _OPERATOR, operators), ("graph", _GRAPH, graphs)):
            connection.executemany(
                f"{verb} INTO {table} ({', '.join(columns)}) "
                f"VALUES ({', '.join('?' * len(columns))}){conflict}",
                rows,
            )


def copy_rows(source: sqlite3.Connection, target: sqlite3.Connection) -> None:
    """Add all rows of one store to another. (Not by SQLite's backup, which may wait forever.)"""
    put_rows(target, all_operators(source), all_graphs(source), replace=True)


def delete_rows(connection: sqlite3.Connection) -> None:
    """Delete all rows and shrink the file."""
    with transaction(connection):
        connection.execute("DELETE FROM operator")
        connection.execute("DELETE FROM graph")
    with suppress(sqlite3.Error):  # another process may be reading
        connection.execute("VACUUM")
