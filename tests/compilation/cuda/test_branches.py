"""On a GPU: an If whose condition is computed runs kernels of the branch that is taken."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import superopt
from superopt.compilation.model.control_flow.dynamic_if import DynamicIf
from tests.support.compilation.models import reference

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("interpreted")]

INSIDE = """<ir_version: 8, opset_import: ["": 17]> g (float[n,16] x) => (float[n,16] y, float s)
    <float zero = {0.0}, int64[1] last = {1}> {
        h = Tanh (x)
        s = ReduceMean <keepdims = 0> (h)
        positive = Greater (s, zero)
        d = If (positive) <
            then_branch = t () => (float[?,?] a) { a = Mul (h, h) },
            else_branch = e () => (float[?,?] a) <float[1] w = {3}> {
                u = Add (h, w)
                a = Exp (u)
            }>
        v = ReduceSum (d, last)
        y = Div (d, v)
    }"""


@pytest.mark.parametrize("rows", [3, 5])
def test_the_branch_that_is_taken(rows: int) -> None:
    m = onnx.parser.parse_model(INSIDE)
    exe = superopt.compile(m, target="cuda")
    x = np.abs(np.random.default_rng(rows).standard_normal((rows, 16))).astype(np.float32)
    for sign in (1, -1, 1):
        given = {"x": sign * x}
        got, wanted = exe.run(given), reference(m, given)
        for name, expected in wanted.items():
            np.testing.assert_allclose(got[name], expected, rtol=1e-4, atol=1e-5)
    (step,) = exe.variant({"n": rows})
    assert isinstance(step, DynamicIf)
    assert all(part.device is exe.device for part in step.executables)
    assert exe.fallback_nodes({"n": rows}) == []
