"""The contents of the disk cache: data and text."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from superopt.report import words


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


def listing(c: CacheListing, every: bool = False) -> str:
    """Return a table of file kinds; with `all_files`, also of all files."""
    lines = [
        words.plain(c.folder),
        f"  {words.size(c.bytes)} of at most {words.size(c.limit)}",
        *(_line(*row) for row in _kinds(c.files)),
    ]
    if every:
        lines += ["", *(_line(_date(f.used), f.name, f.bytes) for f in c.files)]
    return "\n".join([*lines, ""])


def _kinds(files: Sequence[CachedFile]) -> list[tuple[str, str, int]]:
    kinds: dict[str, list[CachedFile]] = {}
    for f in files:
        kinds.setdefault(f.kind, []).append(f)
    rows = []
    for kind, some in sorted(kinds.items()):
        last = _date(max(f.used for f in some))
        about = f"{kind}: {words.count(len(some), 'file')}, last used {last}"
        rows.append(("", about, sum(f.bytes for f in some)))
    return rows


def _line(first: str, text: str, size: int) -> str:
    return f"  {words.size(size):>8}  {first}{'  ' * bool(first)}{words.plain(text)}"


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(seconds))


def pruned(p: Pruned) -> str:
    files = words.count(p.removed, "file")
    return f"removed {files}, {words.size(p.removed_bytes)}; {words.size(p.bytes)} remain\n"
