"""The public functions of the cost store and the disk cache."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from superopt.report.data.report import StoreStats
    from superopt.report.text.cache_listing import CacheListing, Pruned


def cache_stats(store: str | Path | None = None) -> StoreStats:
    """Return the location, size and contents of the cost store."""
    from superopt.cost.store import Store
    from superopt.report.data.report import StoreStats
    from superopt.report.formatting.phrases import count_text

    with Store.open(store) as held:
        s = held.stats()
        names = tuple(
            f"{t.cpu}, {t.runtime} {t.version}, {count_text(t.threads, 'thread')}"
            for t in s.targets
        )
        where = str(s.path) if s.path else f"in memory: {s.reason}"
        return StoreStats(where, s.operators + s.graphs, s.size, names)


def cache_list() -> CacheListing:
    """List the files of the disk cache, most recently used first, with folder, total and limit."""
    from superopt.cost import disk_cache
    from superopt.cost.cache_folders import default_folder
    from superopt.report.text.cache_listing import CachedFile, CacheListing

    folder, found = default_folder(), disk_cache.cache_files()
    files = tuple(
        CachedFile(str(f.path.relative_to(folder)), f.kind, f.bytes, f.used) for f in found
    )
    total = sum(f.bytes for f in files)
    return CacheListing(str(folder), disk_cache.limit_bytes(), total, files)


def cache_prune(max_size: str | int | None = None, older_than: str | float | None = None) -> Pruned:
    """Remove files from the cache, the least recently used first.

    max_size: the size to shrink to, in bytes or as "2GiB"; default the limit, unless an age is
    given. older_than: seconds, or "30d" without use. Measured costs and proofs stay. Raises
    UsageError for an invalid size or age.
    """
    from superopt.cost import disk_cache
    from superopt.cost.cache_folders import default_folder
    from superopt.report.text.cache_listing import Pruned

    most = disk_cache.parse_size(max_size) if isinstance(max_size, str) else max_size
    age = disk_cache.parse_age(older_than) if isinstance(older_than, str) else older_than
    gone = disk_cache.prune(most, age)
    left = sum(f.bytes for f in disk_cache.cache_files())
    return Pruned(str(default_folder()), len(gone), sum(f.bytes for f in gone), left)


def cache_clear(store: str | Path | None = None) -> int:
    """Remove every entry of the store; return how many there were."""
    from superopt.cost.store import Store

    with Store.open(store) as held:
        return held.clear()


def cache_export(store: str | Path | None, file: str | Path) -> int:
    """Write the store to a file, atomically; return the number of entries."""
    from superopt.cost.store import Store

    with Store.open(store) as held:
        return held.export(file)


def cache_import(store: str | Path | None, file: str | Path) -> int:
    """Add the entries of a store exported on the same kind of machine; return how many are new."""
    from superopt.cost.machine import this_machine
    from superopt.cost.store import Store

    with Store.open(store) as held:
        return held.import_(file, this_machine())
