"""The script of examples/github_action.yml, in a repository with a pull request."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx import numpy_helper

from tests.support.optimization import models
from tests.support.optimization.models import model
from tests.support.paths import ROOT

yaml = pytest.importorskip("yaml")
if shutil.which("git") is None or shutil.which("bash") is None:
    pytest.skip("no git or no bash", allow_module_level=True)


def git(folder: Path, *words: str) -> str:
    about = ["-c", "user.name=someone", "-c", "user.email=someone@example.com"]
    return subprocess.run(
        ["git", *about, *words], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


def save_external(proto: onnx.ModelProto, path: Path) -> None:
    path.with_name(f"{path.name}.data").unlink(missing_ok=True)
    onnx.save_model(
        proto, str(path), save_as_external_data=True, location=f"{path.name}.data",
        size_threshold=0,
    )  # fmt: skip


def changed_weight(proto: onnx.ModelProto) -> onnx.ModelProto:
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    t = next(t for t in made.graph.initializer if t.data_type == onnx.TensorProto.FLOAT)
    t.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(t) + 1, t.name))
    return made


def test_models_that_compute_something_else_fail(tmp_path: Path) -> None:
    repository, runner = tmp_path / "repository", tmp_path / "runner"
    repository.mkdir()
    git(repository, "init", "-q", "-b", "main")
    first = model(models.PLAIN)
    onnx.save_model(first, str(repository / "same.onnx"))
    save_external(model(models.PLAIN), repository / "external.onnx")
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", "base")
    base = git(repository, "rev-parse", "HEAD")
    git(repository, "checkout", "-q", "-b", "change")
    renamed = onnx.ModelProto()
    renamed.CopyFrom(first)
    renamed.doc_string = "the same model"
    onnx.save_model(renamed, str(repository / "same.onnx"))
    onnx.save_model(model(models.DONE), str(repository / "new.onnx"))
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", "equal")
    code, out, summary = run_step(repository, runner, base)
    assert code == 0, out
    assert "### same.onnx" in summary
    assert "new.onnx" not in summary

    save_external(changed_weight(first), repository / "external.onnx")
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", "another weight, in the data file only")
    code, out, summary = run_step(repository, runner, base)
    assert code == 1, out
    assert "::error file=external.onnx::" in out
    assert "### external.onnx" in summary


def run_step(repository: Path, runner: Path, base: str) -> tuple[int, str, str]:
    """Run the step's script as the runner does; return its code, output and summary."""
    shutil.rmtree(runner, ignore_errors=True)
    git(repository, "worktree", "prune")
    (runner / "bin").mkdir(parents=True)
    command = runner / "bin" / "superopt"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m superopt "$@"\n')
    command.chmod(0o755)
    steps = yaml.safe_load((ROOT / "examples" / "github_action.yml").read_text())["jobs"]["verify"]
    script = next(s["run"] for s in steps["steps"] if s.get("name") == "superopt verify")
    (runner / "step.sh").write_text(script)
    environment = {
        **os.environ, "RUNNER_TEMP": str(runner), "BASE": base, "PYTHONPATH": str(ROOT),
        "GITHUB_STEP_SUMMARY": str(runner / "summary.md"),
        "PATH": f"{runner / 'bin'}{os.pathsep}{os.environ['PATH']}",
    }  # fmt: skip
    done = subprocess.run(
        ["bash", "-e", runner / "step.sh"], cwd=repository, env=environment, text=True,
        capture_output=True, check=False,
    )  # fmt: skip
    summary = (runner / "summary.md").read_text() if (runner / "summary.md").exists() else ""
    (repository / "verdict.txt").unlink(missing_ok=True)
    return done.returncode, done.stdout + done.stderr, summary
