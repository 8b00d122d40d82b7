"""The C programs of the page "Deploy in C" compile and run as they are written."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

import superopt
from tests.support.compilation.exporting import CC, HERE, node
from tests.support.compilation.models import F, model
from tests.support.paths import ROOT

pytestmark = pytest.mark.skipif(
    CC is None or not HERE, reason="shared objects need Linux on x86-64 and a C compiler"
)
EXAMPLES = (  # shape of the input, and the output, of each C program of the page
    ([4, 6], "nothing is wrong\n"),
    (["rows", 6], "[1, 6]\n[10, 6]\n[100, 6]\n[1000, 6]\nnothing is wrong\n"),
)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_the_examples_of_the_page(number: int, tmp_path: Path) -> None:
    shape, output = EXAMPLES[number]
    m = model([node("Softmax", ["x"], ["y"])], {"x": (F, shape)}, ["y"])
    (tmp_path / "out").mkdir()
    superopt.compile(m).export(tmp_path / "out/model")
    page = (ROOT / "docs/howto/deploy_in_c.md").read_text()
    blocks = re.findall(r"```c\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == len(EXAMPLES)
    (tmp_path / "main.c").write_text(blocks[number])
    (command,) = re.findall(r"^cc (.*) && \./main$", page, re.MULTILINE)
    assert CC is not None
    subprocess.run([CC, "-Wall", "-Werror", *command.split()], cwd=tmp_path, check=True)
    done = subprocess.run(["./main"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.stdout, done.returncode) == (output, 0)
