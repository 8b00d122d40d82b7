"""Triton's text of kernels compiles for a GPU."""

import os
import subprocess
import sys

import pytest

from tests.support.gpu.device import choose
from tests.support.kernels.blocks import PRINTED

pytestmark = pytest.mark.gpu

COMPILED = """
import re
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from superopt.kernels.triton.module import define_functions
from superopt.kernels.triton.loader import compile_options
from superopt.kernels.triton.codegen import triton_text
from tests.support.kernels.blocks import PRINTED

names = {"f16": "fp16", "f32": "fp32"}
for name, own in ((name, kernel()) for name, kernel in PRINTED.items()):
    text, options = triton_text(own, dependent_launch=True), compile_options(own)
    for launch in text.launches:
        f = define_functions(text.source, [launch.name])[launch.name]
        kinds = [f"*{names[t.dtype.name]}" for t in launch.buffers]
        source = ASTSource(f, dict(zip(f.arg_names, kinds, strict=True)), {})
        made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
        ptx = made.asm["ptx"]
        first = re.search(r"(ld|st|cp|red|atom)\\.[a-z.]*global", ptx).start()
        waits = 0 < ptx.find("griddepcontrol.wait") < first
        print(name, f".entry {launch.name}(" in ptx and waits and len(made.asm["cubin"]) > 0)
"""


def test_texts_compile_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """As PTX and machine code, for which no GPU is needed; in a process without the interpreter.
    Nothing in memory is touched before they wait for the launch before them."""
    choose(monkeypatch)
    plain = {n: v for n, v in os.environ.items() if n != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", COMPILED], env=plain,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{name} True" for name in PRINTED]
