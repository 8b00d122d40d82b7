"""Z3 proves; what proves nothing does not load it."""

import subprocess
import sys
from pathlib import Path

import pytest

WITHOUT = (
    "import sys; sys.modules['z3'] = None; from superopt.cli import run; sys.exit(int(run({})))"
)


@pytest.mark.parametrize("command", ["doctor", "compile"])
def test_commands_run_without_it(command: str, root: Path) -> None:
    given = [command] if command == "doctor" else [command, str(root / "superopt/demo/nasrnn.onnx")]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT.format(given)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
