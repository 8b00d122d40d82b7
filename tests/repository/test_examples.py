"""The scripts of examples/ run, and print what they promise."""

from __future__ import annotations

import runpy
import shutil
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

EXAMPLES = ROOT / "examples"
MAX_LINES = 60
SERVER = {"serve", "inference_app", "open_inference"}  # see test_serving_example.py
# By script: parts of its output, in order.
PRINTS = {
    "optimize": ["model.onnx: ", "fast.onnx"],
    "compile_and_profile": ["largest difference", "onnxruntime", "GFLOP/s", "tolerance"],
    "verify_two_models": ["proved: ", "differs: "],
    "write_and_prove_a_rule": [
        "transpose-twice: proved", "softmax-transpose: refuted", "lhs", "['transpose-twice']",
    ],
    "generate_rules": ["rules\n", "relu-relu--relu: proved"],
    "export_to_c": ["model.so", "equal to the compiled model: True"],
    "onnx_backend": ["y: (8, 64), largest difference"],
}  # fmt: skip


@pytest.mark.ci
@pytest.mark.parametrize("name", list(PRINTS))
def test_the_example_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if name == "export_to_c" and not any(map(shutil.which, ("cc", "gcc", "clang"))):
        pytest.skip("no C compiler")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(EXAMPLES), *sys.path])
    monkeypatch.setattr(sys, "argv", [f"{name}.py"])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    rest = capsys.readouterr().out
    for part in PRINTS[name]:
        _, found, rest = rest.partition(part)
        assert found, part


def test_every_example_is_short_listed_and_tested() -> None:
    scripts = {p.stem: p.read_text() for p in EXAMPLES.glob("*.py")}
    assert {*scripts} == {*PRINTS, "small_model", *SERVER}
    assert max(len(text.splitlines()) for text in scripts.values()) <= MAX_LINES
    page = (EXAMPLES / "README.md").read_text()
    assert [name for name in {*PRINTS, *SERVER} if f"`{name}.py`" not in page] == []
