"""Long calls log their steps under `superopt`, and print nothing by themselves."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import onnx
import pytest

import superopt
from superopt.cli.main import run
from tests.support.optimization import models


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "model.onnx"
    onnx.save(models.model(models.PLAIN), str(file))
    return file


def test_the_library_prints_nothing_by_itself(
    path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert any(isinstance(h, logging.NullHandler) for h in logging.getLogger("superopt").handlers)
    superopt.compile(path)
    assert capfd.readouterr().err == ""


def test_optimize_logs_search_check_and_result(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "superopt"):
        superopt.optimize(path, budget=60, cost="roofline")
    assert {r.name for r in caplog.records} == {"superopt.optimize"}
    text = caplog.text
    assert "rules apply" in text
    assert "searched" in text
    assert "passed the check" in text
    assert "certificate: replayed" in text
    assert "result: " in text
    assert {r.levelno for r in caplog.records} == {logging.INFO}


def test_details_are_debug(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "superopt"):
        superopt.optimize(path, budget=60, cost="roofline")
    details = [r.getMessage() for r in caplog.records if r.levelno == logging.DEBUG]
    assert "search: pricing the original" in details
    assert any("transpose" in d for d in details)  # the rules of a variant


def test_compile_logs_fallbacks_by_reason(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[4, 6] x) => (int64[2, n] y) { t = Relu(x) y = NonZero(t) }"""
    with caplog.at_level(logging.DEBUG, "superopt"):
        superopt.compile(onnx.parser.parse_model(text))(x=np.ones((4, 6), np.float32))
    said = [r.getMessage() for r in caplog.records if r.levelno == logging.INFO]
    assert {r.name for r in caplog.records} == {"superopt.compile"}
    assert any("in onnxruntime: " in s for s in said)
    assert any("NonZero runs in onnxruntime" in r.getMessage() for r in caplog.records)


def test_compile_logs_passes(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SUPEROPT_CACHE", str(tmp_path))
    with caplog.at_level(logging.DEBUG, "superopt"):
        superopt.compile(onnx.load(path))
    said = [r.getMessage() for r in caplog.records]
    assert said.index("pass lower-graph") < said.index("pass assign-buffers")
    assert "compiled: 4 nodes in kernels, 0 in onnxruntime" in said


def test_tune_logs_each_kernel(
    path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "superopt.tune"):
        report = superopt.tune(path, budget=4, store=tmp_path / "store.db", float_class="E1")
    said = [r.getMessage() for r in caplog.records if r.name == "superopt.tune"]
    assert len([s for s in said if s.startswith("kernel ")]) == len(report.kernels) > 0


def test_verify_logs_each_method(
    path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = tmp_path / "other.onnx"
    text = models.PLAIN.replace("u = Transpose<perm = [1, 0]>(t)", "u = Identity(x)")
    onnx.save(models.model(text), str(other))
    with caplog.at_level(logging.INFO, "superopt"):
        verdict = superopt.verify(path, other, limit=20, method="auto")
    said = [r.getMessage() for r in caplog.records if r.name == "superopt.verify"]
    assert said[-1] == f"{verdict.decision}: {verdict.reason}"
    assert any(s.startswith(("proofs by definition", "proved")) for s in said)


def test_generate_logs_families(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from superopt.api import generate_rules

    with caplog.at_level(logging.INFO, "superopt"):
        generate_rules(tmp_path / "out", ops="Relu,Neg", shapes="x=2x3", max_ops=2)
    said = [r.getMessage() for r in caplog.records if r.name == "superopt.generate"]
    assert any("candidates" in s for s in said)
    assert any("pruned" in s for s in said)


@pytest.mark.parametrize(("level", "shown"), [("info", True), ("warning", False)])
def test_the_command_line_writes_the_log_to_stderr(
    level: str, shown: bool, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logger = logging.getLogger("superopt")
    handlers = list(logger.handlers)
    try:
        assert run(["--log-level", level, "compile", str(path)]) == 0
    finally:
        logger.handlers[:] = handlers
        logger.setLevel(logging.NOTSET)
    assert ("superopt.compile" in capsys.readouterr().err) == shown
