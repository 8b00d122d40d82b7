"""Bytes that stay in their file: memory-mapped, paged in on access, never copied.

A file is mapped once, when the model is read. The mapping keeps the contents alive even if another
file is renamed over it, so a model may be written over its own input.
"""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

from superopt import guard

_CHUNK_BYTES: Final = 8 << 20
_KERNEL_CHUNK_BYTES: Final = 64 << 20  # copied by one call of the system
_MIN_KERNEL_BYTES: Final = 1 << 20
# The system, or this pair of file systems, has no such call.
_NO_KERNEL_COPY: Final = (
    errno.ENOSYS, errno.EXDEV, errno.EINVAL, errno.EBADF, errno.EOPNOTSUPP, errno.EPERM,
)  # fmt: skip


@dataclass(slots=True, eq=False)
class Backing:
    """The bytes of one file, or bytes given by the caller. They do not change."""

    name: str  # for messages
    view: memoryview
    mapping: mmap.mmap | None = None
    stamp: tuple[int, ...] = ()  # of the file, when it was mapped
    _digest: str = field(default="", init=False)

    def digest(self) -> str:
        """Return the SHA-256 of the bytes, in hexadecimal; computed once."""
        self._digest = self._digest or self.full_region().digest()
        return self._digest

    def share_digest(self, other: Backing) -> None:
        """Take the digest of another mapping if it is of the same file, unmodified between."""
        if self.stamp and self.stamp == other.stamp:
            self._digest = self._digest or other._digest

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
        """Append to a file in chunks; by the system, which copies faster than a process can, or
        shares the blocks on file systems that do."""
        if not self._copy_in_kernel(file):
            for chunk in self.chunks():
                file.write(chunk)

    def _copy_in_kernel(self, file: BinaryIO) -> bool:
        """Append to a file by the system. Return False, with nothing appended, if it cannot."""
        if self.size < _MIN_KERNEL_BYTES or self.backing.mapping is None:
            return False
        if not hasattr(os, "copy_file_range"):
            return False
        try:
            target, source = file.fileno(), os.open(self.backing.name, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            if _stamp(os.fstat(source)) != self.backing.stamp:
                return False  # another file has its name by now
            begin, done = file.tell(), 0
            file.flush()
            while done < self.size:
                guard.check_time(f"copying {self.backing.name}")
                wanted = min(_KERNEL_CHUNK_BYTES, self.size - done)
                count = os.copy_file_range(source, target, wanted, self.offset + done, begin + done)
                if not count:
                    raise OSError(errno.EIO, f"{self.backing.name} became shorter")
                done += count
            file.seek(begin + done)
        except OSError as error:
            if done or error.errno not in _NO_KERNEL_COPY:
                raise
            return False
        finally:
            os.close(source)
        return True

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
