"""Packed constants on disk: each is stored once, named by the digest of its bytes, and mapped when
it is read, so that models, sizes and processes share its pages."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterable
from functools import partial
from hashlib import blake2b
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from superopt.cost.cache_folders import constants_folder
from superopt.kernels.runtime import file_cache as files
from superopt.plan.program.call_context import HUGE_PAGE_BYTES
from superopt.plan.program.constant_pool import CONSTANT_POOL, content_hash, padded_bytes

if TYPE_CHECKING:
    from superopt.onnx_io.read.mapped_file import Region

SUFFIX = ".constant"
_CHUNK_BYTES = 1 << 20  # bytes summed at a time
_CHECKSUM_BYTES = 16
FileChecksum = tuple[str, int, str]  # the digest, bytes and checksum of a constant's file


def constant_path(digest: str) -> Path:
    return constants_folder() / f"{digest}{SUFFIX}"


def checksum(data: np.ndarray) -> str:
    """Return a checksum that detects damage at the speed of reading: sums of the words of each
    chunk.

    data: bytes; their number is a multiple of 8.
    """
    return _combine_sums(data[at : at + _CHUNK_BYTES] for at in range(0, len(data), _CHUNK_BYTES))


def _combine_sums(chunks: Iterable[np.ndarray]) -> str:
    sums = np.array([np.add.reduce(some.view(np.uint64)) for some in chunks], np.uint64)
    return blake2b(sums.data, digest_size=_CHECKSUM_BYTES).hexdigest()


def _read_checksum(file: FileIO) -> str:
    """Return the checksum of a file. It is read and not mapped, so that only the pages that kernels
    read become resident: those of a few rows of a table."""
    chunk = np.empty(_CHUNK_BYTES, np.uint8)
    return _combine_sums(chunk[:n] for n in iter(partial(file.readinto, chunk.data), 0))


def write_constant(digest: str, data: np.ndarray) -> bool:
    """Write a constant unless it exists; False if it cannot be written."""
    path = constant_path(digest)
    if not files.ensure_private(path.parent):
        return False
    if not _touch_if_size(path, len(data)):
        files.write_atomically(path, data.data)
    return path.exists()


def write_region(region: Region) -> str | None:
    """Write a region of a model's file as a constant in its original layout, unless it exists;
    return its digest. None if it cannot be written. The model's pages are released as they are
    read."""
    padding = bytes(padded_bytes(region.size) - region.size)
    found = content_hash()
    region.update_hash(found)
    found.update(padding)
    digest = found.hexdigest()
    path = constant_path(digest)
    if not files.ensure_private(path.parent):
        return None

    def write_contents(file: BinaryIO) -> None:
        region.copy_to(file)
        file.write(padding)

    if not _touch_if_size(path, padded_bytes(region.size)) or not _starts_with_region(path, region):
        files.put_with(path, write_contents)
    return digest if path.exists() else None


def _starts_with_region(path: Path, region: Region) -> bool:
    """True if a file begins with these bytes; comparing takes a third of the time of a digest."""
    try:
        with path.open("rb", buffering=0) as file:
            for at in range(0, region.size, _CHUNK_BYTES):
                wanted = np.frombuffer(region.view()[at : at + _CHUNK_BYTES], np.uint8)
                found = np.frombuffer(file.read(len(wanted)), np.uint8)
                if not np.array_equal(found, wanted):
                    return False
                region.backing.release(region.offset + at, len(wanted))
    except OSError:
        return False
    return True


def file_checksum(digest: str) -> FileChecksum | None:
    """Return the digest, bytes and checksum of a constant that was written; None if it cannot be
    read."""
    path = constant_path(digest)
    try:
        with path.open("rb", buffering=0) as file:
            found = _read_checksum(file)
            return digest, file.tell(), found
    except (OSError, ValueError):  # ValueError: it does not end with a whole word
        return None


def read_constant(digest: str, size: int, expected_checksum: str) -> np.ndarray | None:
    """Return a constant from the process's pool, or mapped from its file; None if the file does not
    match the checksum."""
    if (found := CONSTANT_POOL.get(digest)) is not None:
        return found
    path = constant_path(digest)
    if not files.ensure_private(path.parent) or not _touch_if_size(path, size):
        return None
    try:
        with path.open("rb", buffering=0) as file:
            pages = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
            _fill_huge_pages(pages)
            if _read_checksum(file) != expected_checksum:
                path.unlink()  # else it would count as written
                return None
    except (OSError, ValueError):
        return None
    return CONSTANT_POOL.add(digest, np.frombuffer(pages, np.uint8))


def _fill_huge_pages(pages: mmap.mmap) -> None:
    """Let a file that is not in memory yet be read into huge pages, where the file system has them:
    reading it in order fills small ones. Its pages do not become resident."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return
    with contextlib.suppress(OSError):  # a system without huge pages
        pages.madvise(mmap.MADV_HUGEPAGE)
        for at in range(0, len(pages) - HUGE_PAGE_BYTES + 1, HUGE_PAGE_BYTES):
            pages[at]
            pages.madvise(mmap.MADV_DONTNEED, at, HUGE_PAGE_BYTES)


def is_intact(weights: FileChecksum) -> bool:
    """True if a constant's file has these bytes. Marks it as used now."""
    digest, size, _ = weights
    return _touch_if_size(constant_path(digest), size) and file_checksum(digest) == weights


def _touch_if_size(path: Path, size: int) -> bool:
    """True if there is a file of this size. Marks it as used now."""
    try:
        if path.stat().st_size != size:
            return False
        os.utime(path)
    except OSError:
        return False
    return True
