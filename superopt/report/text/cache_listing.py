"""The contents of the disk cache: data and text."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from superopt.report.formatting import phrases


@dataclass(frozen=True, slots=True)
class CachedFile:
    """A file of the cache. name: relative to the cache's folder; used: when it was last used, in
    seconds since the epoch."""

    name: str
    kind: str
    bytes: int
    used: float


@dataclass(frozen=True, slots=True)
class CacheListing:
    """The files of the cache, most recently used first. limit: bytes, enforced on writes."""

    folder: str
    limit: int
    bytes: int
    files: tuple[CachedFile, ...]


@dataclass(frozen=True, slots=True)
class Pruned:
    """The number and bytes of removed files; bytes: what remains."""

    folder: str
    removed: int
    removed_bytes: int
    bytes: int


def listing_text(c: CacheListing, all_files: bool = False) -> str:
    """Return a table of file kinds; with `all_files`, also of all files."""
    lines = [
        phrases.printable(c.folder),
        f"  {phrases.size_text(c.bytes)} of at most {phrases.size_text(c.limit)}",
        *(_row_text(*row) for row in _rows_by_kind(c.files)),
    ]
    if all_files:
        lines += ["", *(_row_text(_date_text(f.used), f.name, f.bytes) for f in c.files)]
    return "\n".join([*lines, ""])


def _rows_by_kind(files: Sequence[CachedFile]) -> list[tuple[str, str, int]]:
    kinds: dict[str, list[CachedFile]] = {}
    for f in files:
        kinds.setdefault(f.kind, []).append(f)
    rows = []
    for kind, some in sorted(kinds.items()):
        last = _date_text(max(f.used for f in some))
        about = f"{kind}: {phrases.count_text(len(some), 'file')}, last used {last}"
        rows.append(("", about, sum(f.bytes for f in some)))
    return rows


def _row_text(first: str, text: str, size: int) -> str:
    return f"  {phrases.size_text(size):>8}  {first}{'  ' * bool(first)}{phrases.printable(text)}"


def _date_text(seconds: float) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(seconds))


def pruned_text(p: Pruned) -> str:
    files = phrases.count_text(p.removed, "file")
    return (
        f"removed {files}, {phrases.size_text(p.removed_bytes)}; "
        f"{phrases.size_text(p.bytes)} remain\n"
    )
