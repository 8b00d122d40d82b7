"""Files are written whole or not at all: errors, interrupts, kills, full disks, odd targets."""

import contextlib
import os
import resource
import signal
import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from superopt.errors import UsageError
from superopt.onnx_io.export import section_file
from superopt.onnx_io.export.atomic_files import atomic_files
from superopt.onnx_io.export.model_file import copy_unchanged, write_model
from superopt.onnx_io.read.source import read_model
from tests.support.children import Crashed, in_child
from tests.support.onnx_io.files import assert_holds, contents
from tests.support.onnx_io.models import large_weights, save_external


def dying(how: Callable[[], object]) -> ir.Model:
    """A model one of whose weights does something when it is written."""

    def die() -> ir.TensorProtocol:
        how()
        return ir.Tensor(np.zeros((90, 80), np.float32))

    made = ir.from_proto(large_weights())
    made.graph.initializers["w1"].const_value = ir.LazyTensor(
        die, ir.DataType.FLOAT, ir.Shape([90, 80]), name="w1"
    )
    return made


def interrupted() -> None:
    raise KeyboardInterrupt


@pytest.fixture(params=["unnamed", "named"])
def _both_kinds_of_file(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "named":  # a system that has no files without a name
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)


@pytest.mark.usefixtures("_both_kinds_of_file")
@pytest.mark.parametrize("external", [False, True])
def test_a_failure_leaves_everything_as_it_was(external: bool, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(large_weights().SerializeToString())
    if external:
        save_external(large_weights(), path, "m.onnx.data")
    before = contents(tmp_path)
    for target in (path, tmp_path / "new.onnx"):
        with pytest.raises(KeyboardInterrupt):
            write_model(dying(interrupted), target, original=read_model(path))
        assert contents(tmp_path) == before


@pytest.mark.usefixtures("_both_kinds_of_file")
def test_it_works_with_both_kinds(tmp_path: Path) -> None:
    path = save_external(large_weights(), tmp_path / "m.onnx", "weights.bin")
    write_model(read_model(path).model, tmp_path / "n.onnx", original=read_model(path))
    assert_holds(tmp_path / "n.onnx", large_weights())
    names = {p.name for p in tmp_path.iterdir()}
    assert names == {"m.onnx", "weights.bin", "n.onnx", "n.onnx.data"}


def test_a_kill_leaves_no_partial_file(tmp_path: Path) -> None:
    path = save_external(large_weights(), tmp_path / "m.onnx", "m.onnx.data")
    before = contents(tmp_path)

    def write_and_die() -> None:
        doomed = dying(lambda: os.kill(os.getpid(), signal.SIGKILL))
        write_model(doomed, path, original=read_model(path))

    with pytest.raises(Crashed):
        in_child(write_and_die)
    left = contents(tmp_path)
    assert before.items() <= left.items()
    # Without O_TMPFILE the system may keep a file under a name that nobody takes for a model.
    assert all(name.endswith(".tmp") for name in set(left) - set(before))
    if hasattr(os, "O_TMPFILE") and can_be_unnamed(tmp_path):
        assert left == before


def can_be_unnamed(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        os.close(os.open(folder, os.O_TMPFILE | os.O_WRONLY))
        return True
    return False


def test_a_full_disk(tmp_path: Path) -> None:
    source = read_model(large_weights())

    def write_too_much() -> str:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        try:
            write_model(source.model, tmp_path / "m.onnx", original=source)
        except UsageError as error:
            return str(error)
        return ""

    said = in_child(write_too_much)
    assert "m.onnx cannot be written\nFile too large\n" in said
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_a_target(tmp_path: Path) -> None:
    source = read_model(large_weights())
    os.mkfifo(tmp_path / "pipe")
    for target, words in (
        (tmp_path, "it is a directory"),
        (tmp_path / "missing" / "m.onnx", "there is no folder"),
        (tmp_path / "pipe", "not a regular file"),
        (Path(os.devnull), "not a regular file"),
    ):
        with pytest.raises(UsageError, match=words):
            write_model(source.model, target, original=source)
        with pytest.raises(UsageError, match=words):
            copy_unchanged(source, target)
    assert [p.name for p in tmp_path.iterdir()] == ["pipe"]


def test_no_file_takes_the_place_of_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(UsageError, match="not a regular file"), atomic_files() as create:
        create(pipe)
    with pytest.raises(UsageError, match="not a regular file"):
        section_file.write_sections(pipe, {}, [])
    assert [p.name for p in tmp_path.iterdir()] == ["pipe"]


def test_links_and_modes_are_kept(tmp_path: Path) -> None:
    source = read_model(large_weights())
    real = tmp_path / "real.onnx"
    real.write_bytes(b"")
    real.chmod(0o640)
    (tmp_path / "link.onnx").symlink_to(real)
    write_model(source.model, tmp_path / "link.onnx", original=source)
    assert (tmp_path / "link.onnx").is_symlink()
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    assert_holds(real, large_weights())
    write_model(source.model, tmp_path / "new.onnx", original=source)
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE((tmp_path / "new.onnx").stat().st_mode) == 0o666 & ~mask


def test_files_appear_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The data before the model that points to it."""
    order = []

    def replace(source: Path, target: Path) -> None:
        order.append(Path(target).name)
        real(source, target)

    real = os.replace
    monkeypatch.setattr(os, "replace", replace)
    path = save_external(large_weights(), tmp_path / "m.onnx", "weights.bin")
    write_model(read_model(path).model, tmp_path / "n.onnx", original=read_model(path))
    assert order == ["n.onnx.data", "n.onnx"]
