"""Object files on disk: whole ones only, and only from a folder of one's own."""

import os
from pathlib import Path

import pytest

from superopt.kernels.runtime import file_cache
from superopt.kernels.runtime.cpu import host, link_objects, object_code

TEXT = "define i64 @answer() {\n  ret i64 42\n}\n"


def answer(code: bytes) -> int:
    import ctypes

    engine = link_objects([code], host())
    return int(ctypes.CFUNCTYPE(ctypes.c_int64)(engine.get_function_address("answer"))())


def test_what_was_compiled_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "objects"
    code = object_code(TEXT, host(), folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    monkeypatch.setattr(
        "superopt.kernels.runtime.cpu._optimized_module", None
    )  # nothing is compiled any more
    again = object_code(TEXT, host(), folder)
    assert again == code
    assert answer(again) == 42


@pytest.mark.parametrize("cut", [0, 10, 40, -1])
def test_a_torn_file_is_not(tmp_path: Path, cut: int) -> None:
    code = object_code(TEXT, host(), tmp_path / "o")
    (file,) = (tmp_path / "o").glob("*.o")
    file.write_bytes(file.read_bytes()[:cut])
    assert object_code(TEXT, host(), tmp_path / "o") == code
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    assert object_code(TEXT, host(), tmp_path / "o") == code


def test_a_file_of_another_name_is_not(tmp_path: Path) -> None:
    code = object_code(TEXT, host(), tmp_path)
    (file,) = tmp_path.glob("*.o")
    object_code(TEXT.replace("@answer", "@other"), host(), tmp_path)
    (other,) = set(tmp_path.glob("*.o")) - {file}
    file.write_bytes(other.read_bytes())
    assert object_code(TEXT, host(), tmp_path) == code


def test_a_folder_of_others_is_not_used(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    assert answer(object_code(TEXT, host(), folder)) == 42
    assert not list(folder.iterdir())


def test_a_folder_that_cannot_be_made_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert answer(object_code(TEXT, host(), tmp_path / "file" / "objects")) == 42
    assert file_cache.read(tmp_path / "file" / "objects", "x") is None


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_a_folder_that_is_read_only_is_no_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert answer(object_code(TEXT, host(), tmp_path)) == 42


def test_nothing_is_left_of_what_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", stopped)
    with pytest.raises(KeyboardInterrupt):
        file_cache.write_atomically(tmp_path / "x", b"0" * 100)
    assert list(tmp_path.iterdir()) == []
