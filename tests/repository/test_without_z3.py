"""Z3 proves; what proves nothing does not load it."""

import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx import helper

from tests.support.compilation.models import F, model

WITHOUT = (
    "import sys; sys.modules['z3'] = None; from superopt.cli.main import run; "
    "sys.exit(int(run({})))"
)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("command", ["doctor", "compile"])
def test_commands_run_without_it(command: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(model([helper.make_node("Tanh", ["x"], ["y"])], {"x": (F, [3])}, ["y"]), path)
    given = [command, str(path)] if command == "compile" else [command]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT.format(given)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
