"""NaN, infinities, signed zeros, ties on a GPU: docs/reference/exceptional_values.md."""

from __future__ import annotations

import numpy as np
import pytest

from superopt.compilation.cuda import load_compiler
from superopt.onnx_io.read.source import read_model
from tests.support.ops.exceptional import (
    DYNAMIC,
    RULES,
    Rule,
    check,
    check_dynamic,
    dynamic_model,
    feeds,
    model,
    outputs,
)

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("interpreted")]
PAIRS = [
    pytest.param(rule, kind, id=f"{rule.operators}-{kind}")
    for rule in RULES
    for kind in ("float", "float16", "int64")
    if outputs(rule, kind)
]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("rule", "kind"), PAIRS)
def test_on_gpus(rule: Rule, kind: str) -> None:
    exe = load_compiler.compile_model(read_model(model(rule, kind)))
    given = feeds(kind)
    got = exe.run(given)
    assert not exe.fallback_nodes({})
    check(rule, kind, dict(got))


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("x", "y", "scale", "zero"), [row for row in DYNAMIC if row[0]])
def test_dynamic_quantization(x: list[float], y: list[int], scale: float, zero: int) -> None:
    exe = load_compiler.compile_model(read_model(dynamic_model(len(x))))
    check_dynamic(dict(exe.run({"x": np.array(x, np.float32)})), y, scale, zero)
    assert not exe.fallback_nodes({})
