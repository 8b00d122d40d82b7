"""The real command, interrupted and killed: all of the result, or nothing."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx
import pytest

from superopt.onnx_io.read.weightless import demo_models
from tests.support.commands import share_rule_library, superopt_process

LIMIT = 120.0  # seconds; a command that hangs is killed


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("given") / "nasrnn.onnx"
    path.write_bytes(demo_models()["nasrnn"]().SerializeToString())
    return path


class Places:
    """Where a command may leave something."""

    def __init__(self, folder: Path) -> None:
        self.out, self.temporary, self.cache = folder / "out", folder / "tmp", folder / "cache"
        for place in (self.out, self.temporary, self.cache):
            place.mkdir()
        share_rule_library(self.cache)
        self.model = self.out / "fast.onnx"

    def left(self) -> list[str]:
        return [p.name for place in (self.out, self.temporary) for p in place.iterdir()]


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path)


@contextmanager
def command(model: Path, places: Places, *more: str) -> Iterator[subprocess.Popen[str]]:
    """`superopt optimize` with measured costs, its output as text; never longer than LIMIT."""
    given = ["optimize", str(model), "-o", str(places.model), "--budget", "20s", *more]
    environment = {
        **os.environ, "TMPDIR": str(places.temporary), "SUPEROPT_CACHE": str(places.cache)
    }  # fmt: skip
    with superopt_process(given, environment, LIMIT) as process:
        yield process


def wait_for(process: subprocess.Popen[str], stage: str) -> None:
    """Until the command says that this stage begins."""
    assert process.stderr is not None
    for line in process.stderr:
        if f"] {stage}: " in line:
            return
    pytest.fail(f"there was no stage {stage}")


SLOW = pytest.mark.slow


@pytest.mark.ci
@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "stage",
    ["load", "search", *(pytest.param(x, marks=SLOW) for x in ("check", "time"))],
)
def test_an_interrupt_writes_the_best_so_far(stage: str, model: Path, places: Places) -> None:
    with command(model, places) as process:
        wait_for(process, stage)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert process.returncode == 0, err
    assert "stopping with what there is so far" in err
    onnx.checker.check_model(onnx.load(str(places.model)), full_check=True)
    if stage == "load":
        assert "is a byte-identical copy" in out
        assert places.model.read_bytes() == model.read_bytes()
    changed = places.model.read_bytes() != model.read_bytes()
    certificate = ["fast.superopt.json"] if changed else []
    assert places.left() == ["fast.onnx", *certificate]


@pytest.mark.one_in(0)
@pytest.mark.parametrize("stage", ["search", pytest.param("time", marks=pytest.mark.slow)])
def test_a_second_interrupt_leaves_nothing(stage: str, model: Path, places: Places) -> None:
    with command(model, places) as process:
        wait_for(process, stage)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate()
    assert process.returncode == 130, err
    assert out == ""
    assert "Traceback" not in err
    assert places.left() == []


@pytest.mark.one_in(0)
def test_a_killed_command_leaves_no_model_and_a_store_that_works(
    model: Path, places: Places
) -> None:
    with command(model, places) as process:
        wait_for(process, "search")
        process.kill()
        process.wait()
    assert not places.model.exists()
    assert list(places.out.iterdir()) == []
    with command(model, places, "--cost", "roofline", "--budget", "2s") as process:
        _, err = process.communicate()
    assert process.returncode == 0, err
    assert places.model.exists()


@pytest.mark.one_in(0)
def test_the_end_of_the_budget_writes_the_best_so_far(model: Path, places: Places) -> None:
    with command(model, places, "--budget", "1s", "--cost", "roofline") as process:
        _, err = process.communicate()
    assert process.returncode == 0, err
    onnx.checker.check_model(onnx.load(str(places.model)), full_check=True)
    assert places.left() == ["fast.onnx"]
