"""The sizes at which the bandwidth of caches and of memory is measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from superopt.kernels.runtime import cpu_peak


@pytest.fixture
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cpu_peak, "CACHES", tmp_path)
    return tmp_path


def add_cache(caches: Path, text: str) -> None:
    folder = caches / f"index{len(list(caches.iterdir()))}"
    folder.mkdir()
    (folder / "size").write_text(text)


def test_memory_is_read_beyond_the_last_cache(caches: Path) -> None:
    for text in ("48K\n", "2M\n", "307200K\n"):
        add_cache(caches, text)
    assert cpu_peak.last_cache_bytes() == 300 << 20
    for threads in (1, 2):
        *others, last = cpu_peak.buffer_sizes(threads)
        assert tuple(others) == cpu_peak.BUFFER_BYTES
        assert last * threads >= 2 * (300 << 20)
        assert last % 512 == 0  # of which `sum` reads a multiple
    assert cpu_peak.buffer_sizes(8) == cpu_peak.BUFFER_BYTES  # 2 GiB together


def test_small_and_unknown_caches_add_no_size(caches: Path) -> None:
    assert cpu_peak.last_cache_bytes() == 0
    add_cache(caches, "32768K\n")
    add_cache(caches, "unknown\n")
    assert cpu_peak.last_cache_bytes() == 32 << 20
    assert cpu_peak.buffer_sizes(1) == cpu_peak.BUFFER_BYTES
