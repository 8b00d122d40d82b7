"""fp16 values that decide are rounded to their type first: on a GPU."""

from __future__ import annotations

import pytest

from superopt.compilation.cuda import load_compiler
from superopt.onnx_io.read.source import read_model
from tests.support.ops.rounding_decisions import CASES, check, drawn, model

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("interpreted")]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", CASES)
def test_on_gpus(name: str) -> None:
    case, (a, b) = CASES[name], drawn("float16")
    exe = load_compiler.compile_model(read_model(model(case, "float16")))
    assert not exe.fallback_nodes({})
    check(exe.run({"a": a, "b": b})["y"], case, "float16")
