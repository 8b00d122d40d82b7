"""The store when files, disks and processes fail: it goes on, and says what happened."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from superopt.cost import store_schema
from superopt.cost.store import STORE_FILE_NAME, Key, Measurement, Store, Target
from tests.support.paths import ROOT

TARGET = Target("onnxruntime", "1.31.1", "CPU one", "aaaa", 2)
KEY = Key("node", "Relu", ((8,),), ("f32",), TARGET)
VALUE = Measurement(12.5, 12.0, 14.25, 100, 1700000000.5)

# A process that writes batches of ten rows and says which are done.
WRITER = """
import sys
from superopt.cost.store import Key, Measurement, Store, Target
target = Target("onnxruntime", "1.31.1", "CPU one", "aaaa", 2)
path, name, batches = sys.argv[1], sys.argv[2], int(sys.argv[3])
with Store.open(path) as store:
    for batch in range(batches):
        rows = [(f"{name}.{batch}.{i}", float(batch)) for i in range(10)]
        store.put({
            Key("node", op, ((8,),), ("f32",), target): Measurement(us, us, us, 3, 1.0)
            for op, us in rows
        })
        print(batch, flush=True)
    print("notes", *store.notes, flush=True)
"""


def writer(path: Path, name: str, batches: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), name, str(batches)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def batch(name: str, number: int) -> list[Key]:
    return [replace(KEY, operator=f"{name}.{number}.{i}") for i in range(10)]


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / STORE_FILE_NAME
    for process in running:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
    running.clear()


running: list[subprocess.Popen[str]] = []


def test_two_processes_write_at_once(path: Path) -> None:
    """Also into a file that none of them created before the other looked."""
    both = [writer(path, name, 25) for name in "ab"]
    running.extend(both)
    for process in both:
        out, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        assert out.splitlines()[-1] == "notes"
    with Store.open(path) as store:
        assert store.stats().operators == 500
        assert store.notes == ()


def test_kill_9_in_the_middle_of_writing(path: Path) -> None:
    """What was reported as written is there, each batch wholly or not at all; four times over."""
    done = {}
    for name in "abcd":
        process = writer(path, name, 100_000)
        running.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "0\n"
        time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.wait()
        done[name] = 1 + int(("0\n" + process.stdout.read()).split()[-1])
    with Store.open(path) as store:
        assert store.notes == ()
        assert store.path == path
        for name, batches in done.items():
            for number in range(batches):
                assert len(store.get(batch(name, number))) == 10
            assert len(store.get(batch(name, batches))) in (0, 10)
            assert len(store.get(batch(name, batches + 1))) == 0
        store.put({KEY: VALUE})
        assert store.get([KEY]) == {KEY: VALUE}


def test_a_transaction_cut_off_in_the_file_is_rolled_back(path: Path) -> None:
    """As after kill -9 between writing pages and committing: journal there, file half written."""
    with Store.open(path) as store:
        store.put({key: VALUE for n in range(30) for key in batch("old", n)})
    script = """
import os, sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("PRAGMA cache_size = 1")  # pages go to the file before the commit
db.execute("BEGIN IMMEDIATE")
db.execute("UPDATE operator SET us_median = us_median + 1000")
os._exit(9)
"""
    subprocess.run([sys.executable, "-c", script, str(path)], check=False)
    assert Path(f"{path}-journal").stat().st_size > 0
    with Store.open(path) as store:
        assert store.notes == ()
        assert store.get(batch("old", 7)) == dict.fromkeys(batch("old", 7), VALUE)
        assert store.stats().operators == 300


def filled(path: Path) -> bytes:
    with Store.open(path) as store:
        store.put({key: VALUE for n in range(50) for key in batch("old", n)})
    return path.read_bytes()


def overwritten(data: bytes) -> bytes:
    """Zeros in the middle, as a disk may leave them."""
    middle = len(data) // 2
    return data[:middle] + bytes(8192) + data[middle + 8192 :]


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"this is not a database\n" * 1000,
        lambda data: data[:50],
        lambda data: data[:1000],
        lambda data: data[: len(data) // 2],
        lambda data: data[:-1],
        lambda data: bytes(100) + data[100:],
        lambda data: data[:100] + bytes(4000) + data[4100:],
        lambda data: data.replace(b"CREATE TABLE ", b"CREATE \xe2ABLE "),
        overwritten,
    ],
    ids=["garbage", "head", "page", "half", "last", "header", "schema", "text", "middle"],
)
def test_a_damaged_file_is_moved_aside(path: Path, damage: object) -> None:
    assert callable(damage)
    damaged = damage(filled(path))
    path.write_bytes(damaged)
    with Store.open(path) as store:
        assert store.path == path
        (note,) = store.notes
        assert note.startswith(f"{path} is corrupt: ")
        assert note.endswith(
            f"; it was renamed to {STORE_FILE_NAME}.corrupt-1, and a new store was created"
        )
        assert store.stats().operators == 0
        store.put({KEY: VALUE})
    assert path.with_name(f"{STORE_FILE_NAME}.corrupt-1").read_bytes() == damaged
    with Store.open(path) as store:
        assert store.notes == ()
        assert store.get([KEY]) == {KEY: VALUE}


def test_a_file_of_another_name_that_is_no_database_is_left_alone(tmp_path: Path) -> None:
    """Whoever names a model where a store is expected has not lost the model."""
    other = tmp_path / "model.onnx"
    other.write_bytes(b"this is a model" * 100)
    with Store.open(other) as store:
        assert store.path is None
        assert store.reason == f"{other} is not an SQLite database"
        store.put({KEY: VALUE})
    assert other.read_bytes() == b"this is a model" * 100
    assert [p.name for p in tmp_path.iterdir()] == ["model.onnx"]


def test_damaged_twice_both_files_are_kept(path: Path) -> None:
    for text in ("garbage one" * 100, "garbage two" * 100):
        path.write_text(text)
        Store.open(path).close()
    found = sorted(p.name for p in path.parent.iterdir())
    assert found == [
        STORE_FILE_NAME,
        f"{STORE_FILE_NAME}.corrupt-1",
        f"{STORE_FILE_NAME}.corrupt-2",
    ]


def test_the_journal_of_a_damaged_file_goes_with_it(path: Path) -> None:
    """Left behind, it would be rolled back into the new file."""
    path.write_text("garbage")
    Path(f"{path}-journal").write_text("its journal")
    aside = store_schema._move_aside(path)
    assert sorted(p.name for p in path.parent.iterdir()) == [aside.name, f"{aside.name}-journal"]


def test_damage_while_it_is_open(path: Path) -> None:
    filled(path)
    with Store.open(path) as store:
        path.write_bytes(b"garbage" * 10_000)
        assert store.get([KEY]) == {}
        store.put({KEY: VALUE})
        assert store.get([KEY]) == {KEY: VALUE}
        assert store.path is None
        (note,) = store.notes
        assert note.startswith(f"measurements are kept in memory from here on: {path}: ")


@pytest.mark.parametrize("content", [b"", b"x"], ids=["empty", "one byte"])
def test_an_empty_file_is_an_empty_store(path: Path, content: bytes) -> None:
    """SQLite makes no difference between nothing and next to nothing."""
    path.write_bytes(content)
    with Store.open(path) as store:
        assert store.notes == ()
        store.put({KEY: VALUE})
    with Store.open(path) as store:
        assert store.get([KEY]) == {KEY: VALUE}


def test_a_newer_version_is_left_alone(path: Path) -> None:
    filled(path)
    with sqlite3.connect(path) as db:
        db.execute(f"PRAGMA user_version = {store_schema.SCHEMA_VERSION + 1}")
    db.close()
    before = path.read_bytes()
    with Store.open(path) as store:
        assert store.path is None
        assert (
            "written by a newer superopt (version 2 of the tables, this one knows 1)"
            in store.reason
        )
        assert store.notes == (f"measurements are kept in memory only: {store.reason}",)
        store.put({KEY: VALUE})
        assert store.get([KEY]) == {KEY: VALUE}
    assert path.read_bytes() == before


def test_the_database_of_another_program_is_left_alone(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE bookmarks (url TEXT)")
    db.close()
    before = path.read_bytes()
    with Store.open(path) as store:
        assert store.reason == f"{path} is the database of another program"
        store.put({KEY: VALUE})
    assert path.read_bytes() == before


READER = """
import os, sys
from superopt.cost.store import Key, Measurement, Store, Target
if os.getuid() == 0:
    os.setuid(int(sys.argv[2]))
target = Target("onnxruntime", "1.31.1", "CPU one", "aaaa", 2)
old = Key("node", "old.0.0", ((8,),), ("f32",), target)
new = Key("node", "new", ((8,),), ("f32",), target)
with Store.open(sys.argv[1]) as store:
    store.put({new: Measurement(1.0, 1.0, 1.0, 3, 1.0)})
    print(store.path, sorted(key.operator for key in store.get([old, new])), *store.notes, sep="|")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="permissions are a POSIX matter")
@pytest.mark.parametrize("there", [False, True], ids=["new", "existing"])
def test_a_folder_that_cannot_be_written(path: Path, there: bool) -> None:
    """What is in the file is read, what is new is kept in memory.  As nobody, because root writes
    everywhere."""
    if there:
        filled(path)
        path.chmod(0o444)
    before = path.read_bytes() if there else None
    path.parent.chmod(0o555)
    for parent in path.parents:  # pytest's own and its workers', which only the owner may enter
        if parent.name.startswith(("pytest-", "popen-")):
            parent.chmod(0o755)
    try:
        ran = subprocess.run(
            [sys.executable, "-c", READER, str(path), "65534"],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
            timeout=60,
        )
    finally:
        path.parent.chmod(0o755)
    assert ran.returncode == 0, ran.stderr
    place, found, note = ran.stdout.strip().split("|")
    assert place == "None"
    assert found == ("['new', 'old.0.0']" if there else "['new']")
    assert note.startswith(f"measurements are kept in memory only: {path}")
    assert (path.read_bytes() if path.exists() else None) == before


@pytest.mark.parametrize("place", ["/proc/superopt/costs.sqlite3", "file/costs.sqlite3"])
def test_a_place_that_cannot_exist(place: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a file, not a folder")
    with Store.open(tmp_path / place) as store:
        assert store.path is None
        assert store.notes
        store.put({KEY: VALUE})
        assert store.get([KEY]) == {KEY: VALUE}


def test_a_folder_in_the_place_of_the_file(path: Path) -> None:
    path.mkdir()
    (path / STORE_FILE_NAME).mkdir()
    with Store.open(path) as store:
        assert store.path is None
        assert "unable to open database file" in store.reason


def test_another_process_holds_the_lock(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_schema, "_BUSY_SECONDS", 0.1)
    filled(path)
    with Store.open(path) as store:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        store.put({KEY: VALUE})
        other.close()
        assert "database is locked" in store.reason
        found = store.get([KEY, *batch("old", 0)])
        assert len(found) == 11


FULL = """
import resource, sys
from superopt.cost.store import Key, Measurement, Store, Target
target = Target("onnxruntime", "1.31.1", "CPU one", "aaaa", 2)
key = lambda i: Key("node", f"op {i} " + "x" * 1000, ((8,),), ("f32",), target)
value = Measurement(1.0, 1.0, 1.0, 3, 1.0)
with Store.open(sys.argv[1]) as store:
    store.put({key(i): value for i in range(10)})
    resource.setrlimit(resource.RLIMIT_FSIZE, (120_000, 120_000))
    for batch in range(1, 20):
        store.put({key(i): value for i in range(10 * batch, 10 * batch + 10)})
    print(store.path, len(store.get([key(i) for i in range(200)])), *store.notes, sep="|")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no limit on file sizes there")
def test_the_disk_is_full(path: Path) -> None:
    """A limit on the size of files stands for the disk: writing fails in the same place."""
    ran = subprocess.run(
        [sys.executable, "-c", FULL, str(path)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=60,
    )
    assert ran.returncode == 0, ran.stderr
    place, found, note = ran.stdout.strip().split("|")
    assert (place, found) == ("None", "200")
    assert note.startswith(f"measurements are kept in memory from here on: {path}: ")
    with Store.open(path) as store:
        assert store.notes == ()
        assert store.stats().operators % 10 == 0
        assert store.stats().operators >= 10


def test_the_disk_is_full_as_sqlite_says_it(path: Path) -> None:
    with Store.open(path) as store:
        store.put({KEY: VALUE})
        store._db.execute("PRAGMA max_page_count = 8")
        rows = {replace(KEY, operator=f"{i} " + "x" * 1000): VALUE for i in range(100)}
        store.put(rows)
        assert store.get(list(rows)) == rows
        assert store.get([KEY]) == {KEY: VALUE}
        assert store.reason == f"{path}: database or disk is full"
