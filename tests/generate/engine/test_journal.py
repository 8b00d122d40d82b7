"""The journal of a run: what is lost of it is found again, and what is no journal is refused."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from superopt.api.functions import generate_rules
from superopt.errors import UsageError
from superopt.generate.engine.journal import Journal

RUN = "a run"
OPS = "MatMul,Transpose(perm=(1,0)),Concat(axis=0),Sigmoid,Tanh,Erf"
SHAPES = "x=3x3,y=3x3"
FILE = "custom.rules"


def generated(out: Path) -> tuple[int, ...]:
    """The numbers of the lines of the journal that were lost."""
    return generate_rules(out, ops=OPS, shapes=SHAPES, max_ops=2).lost


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("rules")
    assert generated(out) == ()
    assert len((out / "journal.jsonl").read_bytes().splitlines()) > 8
    return out


def written(path: Path, count: int = 3) -> list[bytes]:
    """The lines of a journal of so many results."""
    journal = Journal.open(path, RUN)
    for n in range(count):
        journal.add(f"key {n}", f"value {n}")
    journal.close()
    return path.read_bytes().splitlines()


@pytest.mark.parametrize(
    "spoilt",
    [
        pytest.param(lambda line: line[:9], id="half-written"),
        pytest.param(lambda line: b"\0" * len(line), id="zeros"),
        pytest.param(lambda line: b"\xff\xfe\x80" + line, id="no text"),
        pytest.param(lambda line: line.replace(b"value", b"balue"), id="another value"),
        pytest.param(lambda line: line.replace(b"key", b"kei"), id="another key"),
        pytest.param(lambda line: b"5", id="a number"),
        pytest.param(lambda line: b'{"a": 1, "b": 2, "c": 3}', id="an object"),
        pytest.param(lambda line: b'["key 1", 5, 3]', id="no text inside"),
        pytest.param(lambda line: b'["key 1", "value 1"]', id="no sum"),
        pytest.param(lambda line: b'["\\ud800", "value", 3]', id="half a character"),
        pytest.param(lambda line: b"[" * 100_000, id="deep"),
    ],
)
def test_a_spoilt_line_in_the_middle_is_lost(
    spoilt: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    path = tmp_path / "journal"
    lines = written(path)
    lines[2] = spoilt(lines[2])
    path.write_bytes(b"\n".join(lines) + b"\n")
    again = Journal.open(path, RUN)
    assert again.lost == [3]
    assert again.known == {"key 0": "value 0", "key 2": "value 2"}
    again.add("key 1", "value 1")
    again.close()
    assert len(Journal.open(path, RUN).known) == 3


@pytest.mark.parametrize("left", [0, 1, 20])
def test_a_first_line_that_is_half_written_is_written_anew(left: int, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    whole = written(path, 0)[0]
    path.write_bytes(whole[:left])
    journal = Journal.open(path, RUN)
    journal.add("one", "two")
    journal.close()
    assert path.read_bytes().splitlines()[0] == whole
    assert Journal.open(path, RUN).known == {"one": "two"}


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (bytes(range(256)) * 9, "is not a journal of the rule generator"),
        (b"relu: Relu(x) => x\n", "is not a journal of the rule generator"),
        (b'{"format": 1, "run": "a run"}\n', "is the journal of another run"),
        (b'{"format": 2, "run": "another"}\n', "is the journal of another run"),
    ],
)
def test_another_file_is_refused_and_stays(content: bytes, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=complaint):
        Journal.open(path, RUN)
    assert path.read_bytes().startswith(content)


@pytest.mark.skipif(os.name != "posix", reason="files are locked on POSIX systems only")
def test_only_one_run_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    first = Journal.open(path, RUN)
    with pytest.raises(UsageError, match="is in use\nanother run is writing it"):
        Journal.open(path, RUN)
    first.close()
    Journal.open(path, RUN).close()


def test_a_folder_is_no_journal(tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").mkdir()
    with pytest.raises(UsageError, match=r"journal\.jsonl cannot be opened\nIs a directory"):
        generated(tmp_path)


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "out").touch()
    for out in (tmp_path / "out", tmp_path / "out" / "below"):
        with pytest.raises(UsageError, match="cannot be opened"):
            generated(out)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(UsageError, match="cannot be opened\nPermission denied"):
        generated(tmp_path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk() -> None:
    with pytest.raises(UsageError, match="/dev/full cannot be written\nNo space left on device"):
        Journal(Path("/dev/full")).add("key", "value")


def test_lost_lines_are_found_again(folder: Path, tmp_path: Path) -> None:
    lines = (folder / "journal.jsonl").read_bytes().splitlines(keepends=True)
    lines[4] = lines[4].replace(b"origin", b"0rigin")
    lines[6] = b"\0\0\0\n"
    (tmp_path / "journal.jsonl").write_bytes(b"".join(lines))
    assert generated(tmp_path) == (5, 7)
    assert (tmp_path / FILE).read_bytes() == (folder / FILE).read_bytes()
    assert generated(tmp_path) == (5, 7)  # they are still there, and what they held is, too
    known = Journal.open(tmp_path / "journal.jsonl", json.loads(lines[0])["run"]).known
    assert len(known) == len(lines) - 1


@pytest.mark.one_in(2)
@pytest.mark.parametrize("place", ["journal", "result"])
def test_a_disk_that_is_full_for_a_while(
    place: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the file, and what was found before it is not lost."""
    results = len((folder / "journal.jsonl").read_bytes().splitlines()) - 1
    room = 5 if place == "journal" else results
    synced = os.fsync

    def full(descriptor: int) -> None:
        nonlocal room
        room -= 1
        if room < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        synced(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        wanted = "journal.jsonl" if place == "journal" else "account.json"
        with pytest.raises(UsageError, match=f"{wanted} cannot be written\nNo space left"):
            generated(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["journal.jsonl"]
    before = len((tmp_path / "journal.jsonl").read_bytes().splitlines())
    assert before == (7 if place == "journal" else results + 1)
    assert generated(tmp_path) == ()
    assert (tmp_path / FILE).read_bytes() == (folder / FILE).read_bytes()
