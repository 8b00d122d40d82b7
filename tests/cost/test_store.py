"""The store of measurements: what goes in comes out."""

import sqlite3
import threading
from dataclasses import replace
from pathlib import Path

import platformdirs
import pytest

from superopt.cost.machine import Machine
from superopt.cost.store import (
    STORE_FILE_NAME,
    Key,
    Measurement,
    Stats,
    Store,
    Target,
    default_folder,
)
from superopt.errors import UsageError

HERE = Machine("CPU one", "aaaa", 4, 1 << 34, "Linux")
THERE = Machine("CPU two", "bbbb", 8, 1 << 35, "Linux")
TARGET = Target.for_machine(HERE, "onnxruntime", "1.31.1", 2)
KEY = Key(
    "node", "Conv[group=1, pads=(1, 1, 1, 1)]", ((1, 3, 8, 8), (4, 3, 3, 3)), ("f32",) * 2, TARGET
)
VALUE = Measurement(12.5, 12.0, 14.25, 100, 1700000000.5)
OTHER_KEYS = [
    replace(KEY, kind="kernel"),
    replace(KEY, operator="Conv[group=3, pads=(1, 1, 1, 1)]"),
    replace(KEY, shapes=((1, 3, 8, 8), (4, 3, 3, 4))),
    replace(KEY, shapes=((1, 3, 8), (8, 4, 3, 3, 3))),  # the same numbers in another grouping
    replace(KEY, shapes=()),
    replace(KEY, dtypes=("f32", "f16")),
    replace(KEY, target=replace(TARGET, runtime="openvino")),
    replace(KEY, target=replace(TARGET, version="1.31.2")),
    replace(KEY, target=replace(TARGET, cpu="CPU two")),
    replace(KEY, target=replace(TARGET, flags_digest="bbbb")),
    replace(KEY, target=replace(TARGET, threads=1)),
]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store.sqlite3")


def reopened(store: Store) -> Store:
    assert store.path is not None
    store.close()
    return Store.open(store.path)


def test_what_is_put_is_there_after_reopening(store: Store) -> None:
    store.put({KEY: VALUE})
    assert store.get([KEY]) == {KEY: VALUE}
    again = reopened(store)
    assert again.get([KEY, KEY]) == {KEY: VALUE}
    assert again.notes == ()


@pytest.mark.parametrize("other", OTHER_KEYS, ids=range(len(OTHER_KEYS)))
def test_every_part_of_the_key_counts(store: Store, other: Key) -> None:
    store.put([(KEY, VALUE)])
    assert store.get([other]) == {}
    store.put([(other, replace(VALUE, us_median=1.0))])
    assert store.get([KEY])[KEY].us_median == 12.5
    assert store.get([other])[other].us_median == 1.0


def test_a_newer_measurement_replaces_the_older(store: Store) -> None:
    store.put({KEY: VALUE})
    store.put({KEY: replace(VALUE, us_median=13.0)})
    assert store.get([KEY])[KEY].us_median == 13.0
    assert store.stats().operators == 1


def test_a_batch_is_all_or_nothing(store: Store) -> None:
    """A time that is no number is the caller's mistake, and nothing of its batch is kept."""
    bad = replace(VALUE, us_median=float("nan"))
    with pytest.raises(sqlite3.IntegrityError):
        store.put([(KEY, VALUE), (OTHER_KEYS[0], bad)])
    assert store.get([KEY, OTHER_KEYS[0]]) == {}
    assert store.path is not None


def test_whole_graphs_measured_together(store: Store) -> None:
    times = [[1.5, 2.5, 3.5], [1.0, 2.0, 3.0]]
    store.put_graphs(TARGET, ["d1", "d2"], times, 1.0)
    store = reopened(store)
    assert store.get_graphs(TARGET, ["d1", "d2"]) == ((1.5, 2.5, 3.5), (1.0, 2.0, 3.0))
    assert store.get_graphs(TARGET, ["d2", "d1"]) is None
    assert store.get_graphs(TARGET, ["d1"]) is None
    assert store.get_graphs(replace(TARGET, threads=1), ["d1", "d2"]) is None
    with pytest.raises(UsageError, match="2 digests and 1 lists"):
        store.put_graphs(TARGET, ["d1", "d2"], times[:1], 1.0)


def test_stats_and_clear(store: Store) -> None:
    store.put(dict.fromkeys([KEY, *OTHER_KEYS], VALUE))
    store.put_graphs(TARGET, ["d"], [[1.0]], 1.0)
    stats = store.stats()
    assert (stats.path, stats.reason) == (store.path, "")
    assert (stats.operators, stats.graphs) == (1 + len(OTHER_KEYS), 1)
    assert stats.size > 1000
    assert set(stats.targets) == {key.target for key in [KEY, *OTHER_KEYS]}
    assert store.clear() == 2 + len(OTHER_KEYS)
    assert store.get([KEY]) == {}
    assert reopened(store).stats().operators == 0


def test_many_keys_at_once(store: Store) -> None:
    rows = {
        replace(KEY, operator=f"Op{i}"): replace(VALUE, us_median=float(i)) for i in range(3000)
    }
    store.put(rows)
    assert store.get(list(rows)) == rows


def test_from_several_threads(store: Store) -> None:
    def work(number: int) -> None:
        for i in range(20):
            key = replace(KEY, operator=f"{number}.{i}")
            store.put({key: VALUE})
            assert store.get([key]) == {key: VALUE}

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.stats().operators == 80
    assert store.notes == ()


def test_in_memory_on_purpose() -> None:
    with Store.in_memory() as store:
        store.put({KEY: VALUE})
        assert store.get([KEY]) == {KEY: VALUE}
        assert store.stats() == Stats(None, "it was opened in memory", 1, 0, 0, (TARGET,))
        assert store.notes == ()


def test_where_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPEROPT_CACHE", str(tmp_path / "named"))
    with Store.open() as store:
        assert store.path == tmp_path / "named" / STORE_FILE_NAME
    with Store.open(tmp_path / "named") as store:
        assert store.path == tmp_path / "named" / STORE_FILE_NAME
    monkeypatch.delenv("SUPEROPT_CACHE")
    assert default_folder().name == "superopt"
    assert default_folder() == Path(platformdirs.user_cache_dir("superopt", appauthor=False))


def exported(folder: Path, machine: Machine, *keys: Key) -> Path:
    """The file of a store with the given measurements, as if of `machine`."""
    with Store.open(folder / f"{machine.flags_digest}.sqlite3") as store:
        target = Target.for_machine(machine, "onnxruntime", "1.31.1", 2)
        store.put({replace(key, target=target): VALUE for key in keys})
        store.put_graphs(target, ["d"], [[1.0]], 1.0)
        path = folder / f"{machine.flags_digest}.export"
        assert store.export(path) == len(keys) + 1
    return path


def test_to_another_machine_of_the_same_kind(store: Store, tmp_path: Path) -> None:
    path = exported(tmp_path, HERE, KEY, OTHER_KEYS[0])
    mine = replace(VALUE, us_median=1.0)
    store.put({KEY: mine})
    assert store.import_(path, replace(HERE, cores_allowed=1, memory=1)) == 2
    assert store.get([KEY, OTHER_KEYS[0]]) == {KEY: mine, OTHER_KEYS[0]: VALUE}
    assert store.get_graphs(TARGET, ["d"]) == ((1.0,),)
    assert store.import_(path, HERE) == 0


def test_to_another_kind_of_machine(store: Store, tmp_path: Path) -> None:
    path = exported(tmp_path, THERE, KEY)
    with pytest.raises(UsageError) as error:
        store.import_(path, HERE)
    assert error.value.why == "there: CPU two (flags bbbb); here: CPU one (flags aaaa)"
    assert store.get([KEY]) == {}
    assert store.import_(path, HERE, other_machine=True) == 1
    assert store.get([KEY]) == {KEY: replace(VALUE, machine="CPU two (flags bbbb)")}
    assert store.get_graphs(TARGET, ["d"]) is None

    again = tmp_path / "again.export"
    store.export(again)
    with Store.open(tmp_path / "third.sqlite3") as third:
        third.import_(again, HERE)
        assert third.get([KEY])[KEY].machine == "CPU two (flags bbbb)"


def test_a_mixed_file_gives_what_fits(store: Store, tmp_path: Path) -> None:
    with Store.open(exported(tmp_path, HERE, KEY)) as mixed:
        mixed.import_(exported(tmp_path, THERE, OTHER_KEYS[0]), THERE)
        assert mixed.path is not None
        assert store.import_(mixed.path, HERE) == 2
    assert store.get([KEY, OTHER_KEYS[0]]) == {KEY: VALUE}


def test_an_export_overwrites_nothing(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "there"
    path.write_text("precious")
    with pytest.raises(UsageError, match="does not overwrite"):
        store.export(path)
    assert path.read_text() == "precious"
    with pytest.raises(UsageError, match="was not written"):
        store.export(tmp_path / "no" / "such" / "folder")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["store.sqlite3", "there"]


@pytest.mark.parametrize("content", [b"", b"no database at all" * 100, None])
def test_what_is_no_export_is_refused(store: Store, tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "file"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match="is not a store of measurements"):
        store.import_(path, HERE)
    assert (path.read_bytes() if path.exists() else None) == content


def test_values_that_are_no_measurements_are_refused(store: Store, tmp_path: Path) -> None:
    path = exported(tmp_path, HERE, KEY, OTHER_KEYS[0])
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA ignore_check_constraints = ON")
        db.execute("UPDATE operator SET us_median = 'fast' WHERE kind = 'node'")
    db.close()
    with pytest.raises(UsageError, match="contains invalid measurements"):
        store.import_(path, HERE)
    assert store.stats().operators == 0
