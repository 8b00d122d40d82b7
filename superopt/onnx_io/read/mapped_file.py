"""Bytes that stay in their file: memory-mapped, paged in on access, never copied.

A file is mapped once, when the model is read. The mapping keeps the contents alive even if another
file is renamed over it, so a model may be written over its own input.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from superopt import guard

_CHUNK_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Backing:
    """The bytes of one file, or bytes given by the caller."""

    name: str  # for messages
    view: memoryview
    mapping: mmap.mmap | None = None
    stamp: tuple[int, ...] = ()  # of the file, when it was mapped

    def is_unchanged(self) -> bool:
        """True unless the mapped file was modified in place. A file renamed over it does not affect
        the mapping."""
        if self.mapping is None:
            return True
        try:
            now = _stamp(os.stat(self.name))
        except OSError:
            return True  # it has no name any more
        return now[:2] != self.stamp[:2] or now == self.stamp

    def is_current(self) -> bool:
        """True if the mapped file still has its name and is unmodified."""
        try:
            return _stamp(os.stat(self.name)) == self.stamp
        except OSError:
            return False

    def full_region(self) -> Region:
        return Region(self, 0, len(self.view))

    def release(self, offset: int, size: int) -> None:
        """Release the pages of this range; they are read again on access."""
        if self.mapping is not None and hasattr(mmap, "MADV_DONTNEED"):
            start = offset // mmap.PAGESIZE * mmap.PAGESIZE
            self.mapping.madvise(mmap.MADV_DONTNEED, start, offset + size - start)


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """`size` bytes of a file, starting at `offset`.

    `location` is the name by which the model refers to the file, for external data. Two regions
    hold the same bytes if their `identity` or their `digest()` is equal.
    """

    backing: Backing
    offset: int
    size: int
    location: str | None = None

    @property
    def identity(self) -> tuple[int, int, int]:
        return id(self.backing), self.offset, self.size

    def view(self) -> memoryview:
        return self.backing.view[self.offset : self.offset + self.size]

    def chunks(self) -> Iterator[memoryview]:
        """Yield the bytes in chunks of some megabytes, so that memory use stays small.

        Raises OutOfTime between two chunks if the time of the call is over.
        """
        for start in range(self.offset, self.offset + self.size, _CHUNK_BYTES):
            if start > self.offset:
                guard.check_time(f"reading {self.backing.name}")
            size = min(_CHUNK_BYTES, self.offset + self.size - start)
            yield self.backing.view[start : start + size]
            self.backing.release(start, size)

    def copy_to(self, file: BinaryIO) -> None:
        """Append to a file in chunks."""
        for chunk in self.chunks():
            file.write(chunk)

    def update_hash(self, digest: hashlib._Hash | hashlib.blake2b) -> None:
        """Feed a hash in chunks."""
        for chunk in self.chunks():
            digest.update(chunk)

    def digest(self) -> str:
        """Return the SHA-256 of the bytes, in hexadecimal."""
        digest = hashlib.sha256()
        self.update_hash(digest)
        return digest.hexdigest()


def map_file(path: Path, descriptor: int) -> Backing:
    """Map the regular file open at `descriptor`. The caller closes the descriptor."""
    if os.fstat(descriptor).st_size == 0:  # cannot be mapped, and need not be
        return Backing(str(path), memoryview(b""))
    mapping = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    stamp = _stamp(os.fstat(descriptor))
    return Backing(str(path), memoryview(mapping), mapping, stamp)


def _stamp(s: os.stat_result) -> tuple[int, ...]:
    return s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns
