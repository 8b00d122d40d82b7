"""Object files on disk, and other things that were made, by the digest of what from.

The folder is the user's own: one that others could write to is not used, for what is in it is run.
A file begins with the digest of its key and contents, so that a torn one is not, nor one of another
name. What cannot be read or written is compiled again, and no error.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO

DIGEST = 32


def private(folder: Path) -> bool:
    """Make the folder, and say whether nobody else may write to it."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except OSError:
        return False
    if not hasattr(os, "getuid"):
        return True
    others = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return found.st_uid == os.getuid() and not others


def read(folder: Path | None, key: str, kind: str = "o") -> bytes | None:
    """The object file (or another kind of file) of this key; None where there is none that is
    whole."""
    if folder is None or not private(folder):
        return None
    try:
        held = (folder / f"{key}.{kind}").read_bytes()
    except OSError:
        return None
    code = held[DIGEST:]
    return code if held[:DIGEST] == _digest(key, code) else None


def write(folder: Path | None, key: str, code: bytes, kind: str = "o") -> None:
    """Keep such a file; another process may do the same at once."""
    if folder is not None and private(folder):
        put(folder / f"{key}.{kind}", _digest(key, code), code)


def put(path: Path, *parts: bytes | memoryview) -> None:
    """A file of these bytes, whole or not at all."""

    def write_parts(file: BinaryIO) -> None:
        for part in parts:
            file.write(part)

    put_with(path, write_parts)


def put_with(path: Path, write_contents: Callable[[BinaryIO], None]) -> None:
    """A file of what is written to it, whole or not at all."""
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


def _digest(key: str, code: bytes) -> bytes:
    return blake2b(code, digest_size=DIGEST, key=blake2b(key.encode()).digest()).digest()
