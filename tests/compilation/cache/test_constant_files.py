"""Packed constants on disk."""

from __future__ import annotations

import mmap
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from superopt.compilation.cache import constant_files
from superopt.plan.program.constant_pool import CONSTANT_POOL, content_digest

SIZE = 8 << 20


@pytest.fixture
def written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, constant_files.FileChecksum]:
    monkeypatch.setenv("SUPEROPT_CACHE", str(tmp_path))
    data = np.random.default_rng(0).integers(0, 256, SIZE, np.uint8)
    digest = content_digest(data)
    assert constant_files.write_constant(digest, data)
    found = constant_files.file_checksum(digest)
    assert found == (digest, SIZE, constant_files.checksum(data))
    return constant_files.constant_path(digest), found


def resident_bytes(path: Path) -> int:
    """The bytes of a file that are in this process's memory."""
    text = Path("/proc/self/smaps").read_text("utf-8").partition(str(path))[2]
    return 1024 * int(text.partition("Rss:")[2].split()[0])


@pytest.mark.skipif(sys.platform != "linux", reason="no /proc")
def test_only_the_pages_that_are_read_are_resident(
    written: tuple[Path, constant_files.FileChecksum],
) -> None:
    path, found = written
    data = constant_files.read_constant(*found)
    assert data is not None
    assert resident_bytes(path) < SIZE // 8
    assert data.sum(dtype=np.int64) > 0
    assert resident_bytes(path) == SIZE


def drop_from_page_cache(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def huge_page_bytes(path: Path, data: np.ndarray) -> int:
    """Read the mapped contents of a file; return how many of its bytes are in huge pages."""
    assert data.sum(dtype=np.int64) > 0
    text = Path("/proc/self/smaps").read_text("utf-8").partition(str(path))[2]
    return 1024 * int(text.partition("FilePmdMapped:")[2].split()[0])


def has_huge_pages(folder: Path) -> bool:
    """True if the file system of a folder reads files into huge pages where it is asked to."""
    path = folder / "probe"
    path.write_bytes(bytes([1]) * SIZE)
    drop_from_page_cache(path)
    with path.open("rb") as file:
        pages = mmap.mmap(file.fileno(), SIZE, access=mmap.ACCESS_READ)
    pages.madvise(mmap.MADV_HUGEPAGE)
    return huge_page_bytes(path, np.frombuffer(pages, np.uint8)) == SIZE


@pytest.mark.skipif(sys.platform != "linux", reason="no /proc")
def test_a_file_that_is_not_in_memory_is_read_into_huge_pages(
    written: tuple[Path, constant_files.FileChecksum], tmp_path: Path
) -> None:
    if not has_huge_pages(tmp_path):
        pytest.skip("no huge pages of files here")
    path, found = written
    drop_from_page_cache(path)
    data = constant_files.read_constant(*found)
    assert data is not None
    assert resident_bytes(path) < SIZE // 2
    assert huge_page_bytes(path, data) == SIZE


@pytest.mark.parametrize("damage", ["flip", "cut", "gone"])
def test_damaged_files_are_not_used(
    damage: str, written: tuple[Path, constant_files.FileChecksum]
) -> None:
    path, found = written
    assert constant_files.is_intact(found)
    held = bytearray(path.read_bytes())
    held[SIZE // 3] ^= 4
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(held if damage == "flip" else held[:-3])
    assert not constant_files.is_intact(found)
    CONSTANT_POOL.arrays.pop(found[0], None)
    assert constant_files.read_constant(*found) is None
