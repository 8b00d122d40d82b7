"""The cache on disk: what it holds, and its limit."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from superopt.api import functions
from superopt.cost import disk_cache
from superopt.cost.disk_cache import CacheFile
from superopt.errors import UsageError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SUPEROPT_CACHE", str(tmp_path))
    monkeypatch.delenv(disk_cache.LIMIT_VARIABLE, raising=False)
    return tmp_path


def put(folder: Path, name: str, size: int, used: float) -> Path:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(bytes(size))
    os.utime(path, (used, used))
    return path


def names() -> list[str]:
    return [f.name for f in functions.cache_list().files]


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("512", 512), ("2k", 2048), ("1.5KiB", 1536), ("500 MB", 500 << 20),
     ("2GiB", 2 << 30), ("1t", 1 << 40), ("3b", 3)],
)  # fmt: skip
def test_sizes(text: str, size: int) -> None:
    assert disk_cache.parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("45s", 45), ("90m", 5400), ("12h", 43200), ("30d", 2592000), ("2W", 1209600)],
)
def test_ages(text: str, seconds: float) -> None:
    assert disk_cache.parse_age(text) == seconds


@pytest.mark.parametrize("text", ["", "big", "-1", "2 apples", "1e9", "2GiBs", "nan"])
def test_what_is_no_size_or_age(text: str) -> None:
    with pytest.raises(UsageError):
        disk_cache.parse_size(text)
    with pytest.raises(UsageError):
        disk_cache.parse_age(text)


def test_files_of_each_kind(folder: Path) -> None:
    put(folder, "objects/a.o", 10, 5)
    put(folder, "constants/b.constant", 20, 4)
    put(folder, "ready/c.program", 30, 3)
    put(folder, "ready/d.proof", 40, 2)
    put(folder, "costs.sqlite3", 50, 1)
    put(folder, "costs.sqlite3-wal", 60, 0)
    put(folder, "other.txt", 70, 9)  # not the cache's
    put(folder, "objects/e.part", 80, 9)
    found = functions.cache_list()
    assert [(f.name, f.kind, f.bytes, f.used) for f in found.files] == [
        ("objects/a.o", "object code", 10, 5),
        ("constants/b.constant", "packed constants", 20, 4),
        ("ready/c.program", "programs", 30, 3),
        ("ready/d.proof", "proofs", 40, 2),
        ("costs.sqlite3", "measurements", 50, 1),
        ("costs.sqlite3-wal", "measurements", 60, 0),
    ]
    assert (found.folder, found.bytes, found.limit) == (str(folder), 210, 4 << 30)


@pytest.mark.parametrize(
    ("most", "age", "gone"),
    [
        (None, None, []),
        (100, None, []),
        (99, None, ["old"]),
        (90, None, ["old"]),
        (89, None, ["middle", "old"]),
        (0, None, ["middle", "new", "old"]),  # measurements stay
        (None, 50, ["middle", "old"]),
        (None, 95, ["old"]),
        (89, 95, ["middle", "old"]),
    ],
)
def test_what_is_removed(most: int | None, age: float | None, gone: list[str]) -> None:
    kinds = {"new": "programs", "middle": "object code", "old": "programs", "costs": "measurements"}
    used = {"new": 90.0, "middle": 40.0, "old": 0.0, "costs": -100.0}
    files = [
        CacheFile(Path(n), kind, 10 if n != "costs" else 70, used[n]) for n, kind in kinds.items()
    ]
    found = disk_cache.stale_files(files, most, age, 100.0)
    assert sorted(str(f.path) for f in found) == gone


def test_pruning(folder: Path) -> None:
    put(folder, "objects/old.o", 10, 1)
    put(folder, "objects/new.o", 10, 2e9)
    costs = put(folder, "costs.sqlite3", 50, 0)
    left = put(folder, "ready/x.part", 80, 1)
    done = functions.cache_prune("60")
    assert (done.removed, done.removed_bytes, done.bytes) == (1, 10, 60)
    assert names() == ["objects/new.o", "costs.sqlite3"]
    assert costs.exists()
    assert not left.exists()
    assert functions.cache_prune(older_than="30d").removed == 0
    assert functions.cache_prune(0).removed == 1
    assert names() == ["costs.sqlite3"]


def test_the_limit_is_kept_when_something_is_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(disk_cache.LIMIT_VARIABLE, "1KiB")
    monkeypatch.setattr(disk_cache, "_unchecked_bytes", 0)
    for n in range(5):
        put(folder, f"constants/{n}.constant", 300, n)
    disk_cache.record_written(100)
    assert len(names()) == 5  # it is not looked each time
    disk_cache.record_written(disk_cache.CHECK_INTERVAL_BYTES)
    assert names() == ["constants/4.constant", "constants/3.constant", "constants/2.constant"]


def test_a_limit_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(disk_cache.LIMIT_VARIABLE, "much")
    with pytest.raises(UsageError, match="SUPEROPT_CACHE_MAX_SIZE=much"):
        disk_cache.limit_bytes()
