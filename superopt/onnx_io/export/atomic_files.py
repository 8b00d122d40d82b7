"""Atomic file writes: a file appears whole or not at all.

A new file has no name while it is written (O_TMPFILE, else a temporary name). It is synced and then
renamed over its target. After an error, Ctrl-C or a kill the old file is still there.
"""

import contextlib
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeAlias

from superopt.errors import UsageError


@dataclass(slots=True, eq=False)
class NewFile:
    """A file that will replace `target`; `temporary` is its current name, or None."""

    file: BinaryIO
    target: Path
    temporary: Path | None


CreateFile: TypeAlias = Callable[[Path], NewFile]


@contextlib.contextmanager
def atomic_files(*, is_durable: bool = True) -> Iterator[CreateFile]:
    """Yield a function that creates files; at the end they replace their targets, in order.

    After an exception no target is replaced. is_durable: False: files of this process only, which
    need not survive a power failure. Raises UsageError if the system refuses to write.
    """
    files: list[NewFile] = []

    def create(target: Path) -> NewFile:
        files.append(_create_file(resolve_target(target)))
        return files[-1]

    try:
        yield create
        for new in files:
            new.file.flush()
            if is_durable:
                os.fsync(new.file.fileno())
        for new in files:
            new.temporary = new.temporary or _link_temporary(new)
        for new in files:
            if new.temporary is not None:
                os.replace(new.temporary, new.target)
                new.temporary = None
        for folder in {new.target.parent for new in files} if is_durable else ():
            _fsync_folder(folder)
    except OSError as error:
        path = files[-1].target if files else error.filename
        raise UsageError(
            f"{path} cannot be written",
            error.strerror or str(error),
            "check free space and permissions of the folder, or name another one",
        ) from error
    finally:
        for new in files:
            with contextlib.suppress(OSError):
                new.file.close()
            if new.temporary is not None:
                new.temporary.unlink(missing_ok=True)


def resolve_target(path: str | Path) -> Path:
    """Return the file to write, with links resolved. Raises UsageError if it is not a regular
    file."""
    target = Path(os.path.realpath(path))
    if target.is_dir():
        why, todo = "it is a directory", "name a file in it"
    elif target.exists() and not target.is_file():
        why, todo = "it is not a regular file", "name a file that can be replaced"
    elif not target.parent.is_dir():
        why, todo = f"there is no folder {target.parent}", "create it first"
    else:
        return target
    raise UsageError(f"{path} cannot be written", why, todo)


def _create_file(target: Path) -> NewFile:
    mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
    temporary: Path | None = None
    try:
        os.stat("/proc/self/fd")  # where `_named` finds it again
        descriptor = os.open(target.parent, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o666)
    except (AttributeError, OSError):  # not Linux, or a file system that cannot
        temporary = _temporary_name(target)
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_BINARY", 0)
        descriptor = os.open(temporary, flags, 0o666)
    if mode is not None and hasattr(os, "fchmod"):
        os.fchmod(descriptor, mode)
    return NewFile(os.fdopen(descriptor, "wb"), target, temporary)


def _link_temporary(new: NewFile) -> Path:
    """Give a file without a name a temporary one."""
    temporary = _temporary_name(new.target)
    folder = os.open(new.target.parent, os.O_RDONLY)
    try:
        # With a folder's descriptor Python calls linkat(2), which follows the link in /proc.
        source = f"/proc/self/fd/{new.file.fileno()}"
        os.link(source, temporary, src_dir_fd=folder, follow_symlinks=True)
    finally:
        os.close(folder)
    return temporary


def _temporary_name(target: Path) -> Path:
    return target.with_name(f".{target.name[:200]}.{secrets.token_hex(6)}.tmp")


def _fsync_folder(folder: Path) -> None:
    """Sync the rename. Systems that cannot sync a directory do so themselves."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
