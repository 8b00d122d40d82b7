"""What is kept is of the files that it was made of, whatever their times are."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from superopt.compilation.cache import entries
from superopt.rulegen import model_mutants
from tests.support.compilation.forms import weights
from tests.support.compilation.models import F, model
from tests.support.partial.windows import found, kept


def in_place(path: Path, content: bytes) -> None:
    """Another file of the same size and time."""
    was = path.stat()
    assert len(content) == was.st_size
    path.write_bytes(content)
    os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))
    assert path.stat().st_mtime_ns == was.st_mtime_ns


@pytest.mark.parametrize("of", [entries.package_state_digest, entries.package_content_digest])
def test_a_file_of_superopt_that_is_changed_in_place(
    of: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "package"
    (package / "rules").mkdir(parents=True)
    rules = package / "rules" / "some.rules"
    rules.write_text("a: Add(x, y) => Add(y, x)\n")
    monkeypatch.setattr(entries, "PACKAGE_FOLDER", package)
    own = of.__wrapped__  # type: ignore[attr-defined]
    before = own()
    assert own() == before
    in_place(rules, b"a: Sub(x, y) => Sub(y, x)\n")
    assert own() != before


def test_the_same_files_at_another_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was proved by them is not proved again."""
    made = []
    for name in ("one", "other"):
        package = tmp_path / name
        package.mkdir()
        (package / "some.py").write_text("x = 1\n")
        monkeypatch.setattr(entries, "PACKAGE_FOLDER", package)
        made.append(entries.package_content_digest.__wrapped__())
    assert made[0] == made[1]
    shutil.move(package / "some.py", package / "any.py")
    assert entries.package_content_digest.__wrapped__() != made[0]


@pytest.mark.one_in(0)
def test_a_model_that_is_changed_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its mutants are of its own windows, not of those that it had."""
    monkeypatch.setattr(model_mutants, "_faster_mutants", kept)

    def net(by: int) -> bytes:
        attrs = {"dilations": [by, by], "pads": [by] * 4}
        conv = onnx.helper.make_node("Conv", ["x", "w"], ["y"], **attrs)
        made = model([conv], {"x": (F, [1, 1, 4, 4])}, ["y"], weights(w=(1, 1, 3, 3)))
        return bytes(made.SerializeToString())

    path = tmp_path / "net.onnx"
    path.write_bytes(net(2))
    before, _ = found(path)
    in_place(path, net(3))
    after, _ = found(path)
    assert before
    assert after
    assert all("dilations=(2, 2)" in rule.partition("=>")[0] for rule in before)
    assert all("dilations=(3, 3)" in rule.partition("=>")[0] for rule in after)
