"""Packed constants on disk: each once, named by the digest of its bytes, and mapped when it is
read, so that models, sizes and processes share the file's pages."""

from __future__ import annotations

import mmap
import os
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from superopt.cost.folder import constants_folder
from superopt.kernels.runtime import file_cache as files
from superopt.plan.program.constant_pool import CONSTANT_POOL, DIGEST_BYTES, padded_bytes

if TYPE_CHECKING:
    from superopt.onnx_io.read.mapped_file import Region

SUFFIX = ".constant"
_CHUNK = 1 << 20  # bytes that are summed at a time
_CHECK_BYTES = 16


def path_of(digest: str) -> Path:
    return constants_folder() / f"{digest}{SUFFIX}"


def checksum(data: np.ndarray) -> str:
    """Tells damage of a file, in the time that reading takes: sums of the words of each chunk.

    data: bytes, a multiple of 8 of them."""
    words = (data[at : at + _CHUNK].view(np.uint64) for at in range(0, len(data), _CHUNK))
    sums = np.array([np.add.reduce(some) for some in words], np.uint64)
    return blake2b(sums.data, digest_size=_CHECK_BYTES).hexdigest()


def keep(digest: str, data: np.ndarray) -> bool:
    """Write a constant unless it is there; False where it cannot be."""
    path = path_of(digest)
    if not files.ensure_private(path.parent):
        return False
    if not _touched(path, len(data)):
        files.write_atomically(path, data.data)
    return path.exists()


def keep_region(region: Region) -> str | None:
    """Write a piece of a model's file as a constant in its original layout, unless it is there; its
    digest. None where it cannot be written. Pages of the model are given back meanwhile."""
    padding = bytes(padded_bytes(region.size) - region.size)
    found = blake2b(digest_size=DIGEST_BYTES)
    region.update_hash(found)
    found.update(padding)
    digest = found.hexdigest()
    path = path_of(digest)
    if not files.ensure_private(path.parent):
        return None

    def write_contents(file: BinaryIO) -> None:
        region.copy_to(file)
        file.write(padding)

    if not _touched(path, padded_bytes(region.size)) or not _holds(path, region):
        files.put_with(path, write_contents)
    return digest if path.exists() else None


def _holds(path: Path, region: Region) -> bool:
    """True if a file begins with these bytes; comparing takes a third of the time of a digest."""
    try:
        with path.open("rb", buffering=0) as file:
            for at in range(0, region.size, _CHUNK):
                wanted = np.frombuffer(region.view()[at : at + _CHUNK], np.uint8)
                found = np.frombuffer(file.read(len(wanted)), np.uint8)
                if not np.array_equal(found, wanted):
                    return False
                region.backing.release(region.offset + at, len(wanted))
    except OSError:
        return False
    return True


def read(digest: str, size: int, check: str) -> np.ndarray | None:
    """The constant, from the process's pool or mapped from its file; None where that has not the
    bytes that were written."""
    if (found := CONSTANT_POOL.get(digest)) is not None:
        return found
    path = path_of(digest)
    if not files.ensure_private(path.parent) or not _touched(path, size):
        return None
    try:
        with path.open("rb", buffering=0) as file:
            pages = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
    except (OSError, ValueError):
        return None
    data = np.frombuffer(pages, np.uint8)
    if checksum(data) != check:
        with suppress(OSError):
            path.unlink()  # or it would count as written
        return None
    return CONSTANT_POOL.add(digest, data)


def _touched(path: Path, size: int) -> bool:
    """Is there a file of this size? It counts as used now."""
    try:
        if path.stat().st_size != size:
            return False
        os.utime(path)
    except OSError:
        return False
    return True
