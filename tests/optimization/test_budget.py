"""Budgets of time and memory, and weights that are not copied."""

from __future__ import annotations

import json
import os
import resource
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest

from scripts.bench_budget import run_command
from scripts.large_model import draw_decoder
from superopt.optimization import candidate, check_variants, optimize, stage_times
from superopt.optimization.optimization_result import save_model
from tests.support.commands import share_rule_library, superopt_process
from tests.support.optimization import models
from tests.support.optimization.models import model
from tests.support.optimization.running import report, run

BUDGET = 5.0  # seconds
TENTH = 1.1


@pytest.fixture
def decoder(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "decoder.onnx"
    draw_decoder(path, layers=2, hidden=256, vocabulary=4000)
    yield path
    shutil.rmtree(tmp_path)


def locations(path: Path) -> set[str]:
    proto = onnx.load(path, load_external_data=False)
    entries = (e for t in proto.graph.initializer for e in t.external_data)
    return {e.value for e in entries if e.key == "location"}


def test_a_command_keeps_its_budget_and_copies_no_weights(decoder: Path) -> None:
    cache = decoder.parent / "cache"
    share_rule_library(cache)
    output, data = decoder.with_name("fast.onnx"), decoder.with_name("decoder.onnx.data")
    inode, stamp = data.stat().st_ino, data.stat().st_mtime_ns
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    environment = {**os.environ, "SUPEROPT_CACHE": str(cache)}
    words = ["optimize", decoder, "-o", output, "--budget", f"{BUDGET:g}s", "--json", "--quiet"]
    with superopt_process(words, environment, 60) as process:
        out, err = process.communicate()
    taken, after = time.monotonic() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    assert process.returncode == 0, err
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    # Starting Python takes a second. The clock also counts what other processes of the machine do.
    assert cpu < TENTH * BUDGET + 1
    assert taken < 2 * TENTH * BUDGET + 1
    assert json.loads(out)["search"]["graphs_seen"] > 0
    assert data.name in locations(output)
    assert (data.stat().st_ino, data.stat().st_mtime_ns) == (inode, stamp)
    written = sum(p.stat().st_size for p in decoder.parent.glob("fast.onnx*"))
    assert written < 0.5 * data.stat().st_size
    onnx.checker.check_model(output)


def test_what_is_written_is_said(decoder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("elsewhere")
    cache = decoder.parent / "cache"
    share_rule_library(cache)
    environment = {**os.environ, "SUPEROPT_CACHE": str(cache)}
    said = []
    for output in (decoder.with_name("simple.onnx"), folder / "simple.onnx"):
        with superopt_process(["simplify", decoder, output, "--quiet"], environment, 60) as process:
            out, err = process.communicate()
        assert process.returncode == 0, err
        said.append(out)
    beside, copied = said
    assert f"reads {decoder}.data" in beside
    assert "of decoder.onnx: not copied" in beside
    assert "not copied" not in copied
    assert f"wrote {folder / 'simple.onnx'}.data" in copied


def test_a_check_that_does_not_fit_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    given = model(models.PLAIN).SerializeToString()
    assert report(run(given)).changed
    monkeypatch.setattr(check_variants, "check_seconds", lambda original, graph: 1000.0)

    def examine(*given: object) -> None:
        raise AssertionError("a check was begun")

    monkeypatch.setattr(check_variants, "examine_variant", examine)
    found = report(run(given))
    assert not found.changed
    (note,) = (n for n in found.notes if "not checked and not used" in n)
    assert "about 1000 s" in note


def test_the_search_leaves_time_for_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[float]()
    improve = optimize.improve

    def record_seconds(*given: object, seconds: float, **more: object) -> object:
        asked.append(seconds)
        return improve(*given, seconds=seconds, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(optimize, "improve", record_seconds)
    given = model(models.PLAIN).SerializeToString()
    for seconds in (0.0, 12.0, 1000.0):
        monkeypatch.setattr(optimize, "check_seconds", lambda original, graph: seconds)  # noqa: B023
        run(given, budget=20.0)
    short, reserved, least = asked
    assert 8 < short <= optimize.MAX_SEARCH_PART * 20
    assert 4 < reserved <= 20 - 12 - optimize.RESERVED_RACE_PART * 20
    assert least == pytest.approx(optimize.MIN_SEARCH_PART * 20)


def test_large_constants_that_the_model_computes_are_not_folded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = models.PLAIN.replace("[6, 5] a", "[6, 900] a").replace("[4, 5] p", "[4, 900] p")
    path = tmp_path / "given.onnx"
    onnx.save_model(
        model(text), str(path), save_as_external_data=True, location="given.data",
        size_threshold=0,
    )  # fmt: skip
    monkeypatch.setattr(candidate, "LARGE_MODEL_BYTES", 1)
    done = run(path)
    assert done.winner is not None
    save_model(done, tmp_path / "out.onnx")
    assert locations(tmp_path / "out.onnx") == {"given.data"}
    assert not (tmp_path / "out.onnx.data").exists()


def test_predictions_grow_with_the_model() -> None:
    assert stage_times.finish_seconds(0) == 0
    assert stage_times.finish_seconds(2 << 30) > stage_times.save_seconds(2 << 30) > 1
    assert stage_times.compare_compiled_seconds(0) == stage_times.MIN_COMPARED_SECONDS


@pytest.mark.slow
@pytest.mark.parametrize("budget", [30.0, 60.0])
def test_a_model_of_two_gigabytes(budget: float, tmp_path: Path) -> None:
    path = tmp_path / "large.onnx"
    size = draw_decoder(path)
    try:
        row = run_command("optimize", path, tmp_path / "out.onnx", budget)
    finally:
        path.with_name("large.onnx.data").unlink()
    assert size > 2 << 30
    over, memory, graphs = float(row[4]), float(row[7]), int(row[9])
    assert over < 1.5 * TENTH  # by the clock, on a machine that may be busy
    assert memory < 2.5
    assert graphs > 0
