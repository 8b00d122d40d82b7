"""A disk cache of object files and other artefacts, keyed by the digest of their source.

The folder must belong to the user: one that others can write to is not used, because its contents
are executed. A file starts with a digest of its key and contents, so that truncated or renamed
files are rejected. Read and write errors are ignored: the caller compiles again.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO

DIGEST_BYTES = 32


def ensure_private(folder: Path) -> bool:
    """Create the folder. True if only its owner may write to it."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except OSError:
        return False
    if not hasattr(os, "getuid"):
        return True
    others = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return found.st_uid == os.getuid() and not others


def read(folder: Path | None, key: str, suffix: str = "o") -> bytes | None:
    """Return the content stored under this key; None if it is missing or damaged. suffix: of the
    file's name."""
    if folder is None or not ensure_private(folder):
        return None
    try:
        held = (folder / f"{key}.{suffix}").read_bytes()
    except OSError:
        return None
    code = held[DIGEST_BYTES:]
    return code if held[:DIGEST_BYTES] == _digest(key, code) else None


def write(folder: Path | None, key: str, content: bytes, suffix: str = "o") -> None:
    """Store content under this key; safe against concurrent writers."""
    if folder is not None and ensure_private(folder):
        write_atomically(folder / f"{key}.{suffix}", _digest(key, content), content)


def write_atomically(path: Path, *parts: bytes | memoryview) -> None:
    """Write a file atomically: it has all of these bytes or does not exist."""

    def write_parts(file: BinaryIO) -> None:
        for part in parts:
            file.write(part)

    put_with(path, write_parts)


def put_with(path: Path, write_contents: Callable[[BinaryIO], None]) -> None:
    """Write a file atomically, with the contents that the function writes to it."""
    # As tempfile.mkstemp, which takes 8 ms to import.
    part = path.with_name(f"{os.urandom(8).hex()}.part")
    with contextlib.suppress(OSError):
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        handle = os.open(part, flags | getattr(os, "O_CLOEXEC", 0), 0o600)
        try:
            with os.fdopen(handle, "wb") as f:
                write_contents(f)
            os.replace(part, path)
        except BaseException:  # such as KeyboardInterrupt
            os.unlink(part)
            raise


def _digest(key: str, content: bytes) -> bytes:
    return blake2b(content, digest_size=DIGEST_BYTES, key=blake2b(key.encode()).digest()).digest()
