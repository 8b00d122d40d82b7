"""The disk cache: its files and its size limit.

All files below the cache's folder count: object files, packed constants, programs, and measured
costs. When a model was compiled and the total exceeds the limit, the least recently used files are
removed. Measured costs and proofs took long to compute and are small: they count, and stay.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from superopt.cost.cache_folders import STORE_FILE_NAME, default_folder
from superopt.errors import UsageError

LIMIT_VARIABLE: Final = "SUPEROPT_CACHE_MAX_SIZE"
DEFAULT_LIMIT_BYTES: Final = 4 << 30
ABANDONED_SECONDS: Final = 3600.0  # after which an unfinished file is considered abandoned
CHECK_INTERVAL_BYTES: Final = 32 << 20  # that a process writes between two checks of the folder
KEPT_FRACTION: Final = 0.9  # of the limit remains when files are removed for it
PARTIAL_SUFFIX: Final = ".part"
# By folder and suffix; other files do not belong to the cache.
FILE_KINDS: Final = {
    ("objects", ".o"): "object code",
    ("ready", ".program"): "programs",
    ("ready", ".constants"): "packed constants",  # of GPU programs
    ("ready", ".model"): "models",
    ("ready", ".digest"): "models",
    ("ready", ".fallback"): "models",  # that fall back to onnxruntime
    ("ready", ".seconds"): "models",  # compile times
    ("ready", ".proof"): "proofs",
    ("constants", ".constant"): "packed constants",
    ("rules", ".rules"): "rules",
    ("", ".sqlite3"): "measurements",
}
PERMANENT_KINDS: Final = ("measurements", "proofs")
_UNIT_SHIFTS: Final = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_SECONDS_PER_UNIT: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


@dataclass(frozen=True, slots=True)
class CacheFile:
    """A file of the cache. used: when it was last used, in seconds since the epoch."""

    path: Path
    kind: str
    bytes: int
    used: float


def parse_size(text: str) -> int:
    """Parse bytes: "2GiB", "500M", "1048576"; units are powers of 1024. Raises UsageError."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?\s*", text, re.IGNORECASE)
    if found is None:
        raise UsageError(
            f"invalid size {text!r}", "a size is a number with a unit", "write it as 2GiB"
        )
    return int(float(found[1]) * (1 << _UNIT_SHIFTS[found[2].lower()]))


def parse_age(text: str) -> float:
    """Parse seconds: "30d", "12h", "90m", "2w", "45s". Raises UsageError."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smhdw])\s*", text, re.IGNORECASE)
    if found is None:
        raise UsageError(
            f"invalid age {text!r}", "an age is a number with s, m, h, d or w", "write it as 30d"
        )
    return float(found[1]) * _SECONDS_PER_UNIT[found[2].lower()]


def limit_bytes() -> int:
    """Return $SUPEROPT_CACHE_MAX_SIZE, default 4 GiB. Raises UsageError for an invalid size."""
    named = os.environ.get(LIMIT_VARIABLE)
    if not named:
        return DEFAULT_LIMIT_BYTES
    try:
        return parse_size(named)
    except UsageError as e:
        raise UsageError(
            f"{LIMIT_VARIABLE}={named}", e.why, "write it as 2GiB, or unset it"
        ) from None


def cache_files(root: Path | None = None) -> list[CacheFile]:
    """Return the files of the cache, most recently used first. root: its folder."""
    root = default_folder() if root is None else root
    out: list[CacheFile] = []
    for name in sorted({folder for folder, _ in FILE_KINDS}):
        out += _files_in(root / name, name)
    return sorted(out, key=lambda f: (-f.used, str(f.path)))


def _files_in(where: Path, name: str) -> Iterator[CacheFile]:
    try:
        found = [*os.scandir(where)]
    except OSError:
        return
    for e in found:
        kind = FILE_KINDS.get((name, os.path.splitext(e.name)[1]))
        # SQLite keeps uncommitted data in files beside the store.
        kind = "measurements" if not name and e.name.startswith(f"{STORE_FILE_NAME}-") else kind
        with suppress(OSError):
            if kind is not None and e.is_file(follow_symlinks=False):
                state = e.stat()
                yield CacheFile(Path(e.path), kind, state.st_size, state.st_mtime)


def stale_files(
    files: Sequence[CacheFile], max_bytes: int | None, older_than: float | None, now: float
) -> list[CacheFile]:
    """Return the files to remove, so that at most `max_bytes` remain, all of them used in the last
    `older_than` seconds; None: no limit. files: most recently used first."""
    total = sum(f.bytes for f in files)
    out = []
    for f in reversed(files):
        old = older_than is not None and now - f.used > older_than
        if f.kind not in PERMANENT_KINDS and (old or (max_bytes is not None and total > max_bytes)):
            out.append(f)
            total -= f.bytes
    return out


def prune(
    max_bytes: int | None = None, older_than: float | None = None, root: Path | None = None
) -> list[CacheFile]:
    """Remove files, the least recently used first; return the removed ones.

    max_bytes: the total that may remain; None: the limit, unless an age is given. older_than:
    seconds without use after which a file is removed.
    """
    root = default_folder() if root is None else root
    if max_bytes is None and older_than is None:
        max_bytes = limit_bytes()
    _remove_abandoned(root)
    out = []
    for f in stale_files(cache_files(root), max_bytes, older_than, time.time()):
        with suppress(OSError):
            f.path.unlink()
            out.append(f)
    return out


def _remove_abandoned(root: Path) -> None:
    """Remove unfinished files of processes that were killed."""
    for name in sorted({folder for folder, _ in FILE_KINDS if folder}):
        for part in (root / name).glob(f"*{PARTIAL_SUFFIX}"):
            with suppress(OSError):
                if time.time() - part.stat().st_mtime > ABANDONED_SECONDS:
                    part.unlink()


_unchecked_bytes = CHECK_INTERVAL_BYTES  # bytes that this process wrote since its last check


def record_written(size: int) -> None:
    """Record that this process added `size` bytes to the cache, and enforce the limit."""
    global _unchecked_bytes
    _unchecked_bytes += size
    if _unchecked_bytes < CHECK_INTERVAL_BYTES:
        return
    _unchecked_bytes = 0
    limit = limit_bytes()
    if sum(f.bytes for f in cache_files()) > limit:
        prune(int(limit * KEPT_FRACTION))
