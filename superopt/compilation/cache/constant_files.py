"""Packed constants on disk: each is stored once, named by the digest of its bytes, and mapped when
it is read, so that models, sizes and processes share its pages."""

from __future__ import annotations

import mmap
import os
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from superopt.cost.cache_folders import constants_folder
from superopt.kernels.runtime import file_cache as files
from superopt.plan.program.constant_pool import CONSTANT_POOL, content_hash, padded_bytes

if TYPE_CHECKING:
    from superopt.onnx_io.read.mapped_file import Region

SUFFIX = ".constant"
_CHUNK_BYTES = 1 << 20  # bytes summed at a time
_CHECKSUM_BYTES = 16


def constant_path(digest: str) -> Path:
    return constants_folder() / f"{digest}{SUFFIX}"


def checksum(data: np.ndarray) -> str:
    """Return a checksum that detects damage at the speed of reading: sums of the words of each
    chunk.

    data: bytes; their number is a multiple of 8.
    """
    words = (
        data[at : at + _CHUNK_BYTES].view(np.uint64) for at in range(0, len(data), _CHUNK_BYTES)
    )
    sums = np.array([np.add.reduce(some) for some in words], np.uint64)
    return blake2b(sums.data, digest_size=_CHECKSUM_BYTES).hexdigest()


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


def file_checksum(digest: str) -> tuple[str, int, str] | None:
    """Return the digest, bytes and checksum of a constant that was written; None if it cannot be
    read."""
    try:
        data = np.fromfile(constant_path(digest), np.uint8)
    except OSError:
        return None
    return digest, len(data), checksum(data)


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
    except (OSError, ValueError):
        return None
    data = np.frombuffer(pages, np.uint8)
    if checksum(data) != expected_checksum:
        with suppress(OSError):
            path.unlink()  # else it would count as written
        return None
    return CONSTANT_POOL.add(digest, data)


def is_intact(digest: str) -> bool:
    """True if there is a file of this constant with the bytes of its digest. Marks it as used
    now."""
    path, found = constant_path(digest), content_hash()
    try:
        with path.open("rb", buffering=0) as file:
            while some := file.read(_CHUNK_BYTES):
                found.update(some)
        os.utime(path)
    except OSError:
        return False
    return found.hexdigest() == digest


def _touch_if_size(path: Path, size: int) -> bool:
    """True if there is a file of this size. Marks it as used now."""
    try:
        if path.stat().st_size != size:
            return False
        os.utime(path)
    except OSError:
        return False
    return True
