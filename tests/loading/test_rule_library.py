"""The rule library is parsed once, and again when what it depends on changed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from superopt.cost import disk_cache
from superopt.errors import OutOfTime
from superopt.guard import limit_call
from superopt.loading import rule_library
from superopt.rules.library import load
from superopt.rules.library.records import rules_digest

KEPT = "*.rules"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache, and nothing loaded."""
    monkeypatch.setenv("SUPEROPT_CACHE", str(tmp_path))
    rule_library.load_library.cache_clear()
    yield tmp_path / "rules"
    rule_library.load_library.cache_clear()


def reload(monkeypatch: pytest.MonkeyPatch) -> int:
    """Load as another process does; how many times the text was parsed."""
    count = 0
    parse = load.load_library

    def counted() -> object:
        nonlocal count
        count += 1
        return parse()

    rule_library.load_library.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(load, "load_library", counted)
        assert rules_digest(rule_library.load_library()) == rules_digest(parse())
    return count


def test_it_is_parsed_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [reload(monkeypatch) for _ in range(3)] == [1, 0, 0]
    (file,) = folder.glob(KEPT)
    assert [f.path for f in disk_cache.cache_files() if f.kind == "rules"] == [file]
    assert rule_library.load_library() == load.load_library()


@pytest.mark.ci
@pytest.mark.parametrize("damage", ["flip", "cut", "gone", "empty"])
def test_a_damaged_file_is_made_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    assert reload(monkeypatch) == 1
    (file,) = folder.glob(KEPT)
    whole = file.read_bytes()
    held = bytearray(whole)
    held[len(held) // 3] ^= 4
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes({"flip": held, "cut": held[:-7], "empty": b""}[damage])
    assert [reload(monkeypatch) for _ in range(2)] == [1, 0]
    assert file.read_bytes() == whole


def test_another_text_is_another_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert reload(monkeypatch) == 1
    names = load.library_files()
    monkeypatch.setattr(load, "library_files", lambda: names[:-1])
    assert reload(monkeypatch) == 1
    assert len([*folder.glob(KEPT)]) == 2


def test_a_cache_that_others_may_write_to_is_not_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert reload(monkeypatch) == 1
    folder.chmod(0o777)
    assert reload(monkeypatch) == 1


def test_parsing_ends_at_the_end(folder: Path) -> None:
    load.load_library.cache_clear()
    with limit_call(60) as limits:
        limits.shorten_deadline(-1)
        with pytest.raises(OutOfTime, match="parsing the rule library"):
            rule_library.load_library()
    assert not [*folder.glob(KEPT)]
