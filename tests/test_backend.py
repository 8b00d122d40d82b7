"""ONNX's own test cases of nodes, on compiled code."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from superopt.backend import prepare, run_node
from superopt.errors import ModelError, UsageError
from tests.support.onnx_io.node_tests import EXCEPT, arrays, same
from tests.support.ops import suite


def runs(case: Any) -> bool:
    """Does onnxruntime run it, as it is?"""
    ort = pytest.importorskip("onnxruntime")
    options = ort.SessionOptions()
    options.log_severity_level = 4
    model = case.model or onnx.load(f"{case.model_dir}/model.onnx")
    try:
        session = ort.InferenceSession(model.SerializeToString(), options)
        names = [v.name for v in session.get_inputs()]
        for given, _ in case.data_sets:
            session.run(None, dict(zip(names, arrays(given), strict=True)))
    except Exception:  # of a dozen types
        return False
    return True


@pytest.mark.one_in(40)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    "name",
    # Of the functions' bodies, which are other cases' operators, some each time.
    [
        pytest.param(n, marks=pytest.mark.slow if "expanded" in n and i % 4 else ())
        for i, n in enumerate(suite.case_names())
    ],
)
def test_node(name: str) -> None:
    if name in EXCEPT:
        pytest.skip(EXCEPT[name])
    case = suite.cases().get(name)
    if case is None:
        pytest.skip(f"onnx {onnx.__version__} has no case {name}")
    try:
        made = prepare(case.model)
        sets = [(arrays(given), arrays(out)) for given, out in case.data_sets]
        found = [(given, made.run(given), out) for given, out in sets]
    except ModelError as e:
        if runs(case):
            raise
        pytest.skip(str(e).splitlines()[0])  # onnxruntime does not run it either
    for given, got, wanted in found:
        for a, b in zip(got, wanted, strict=True):
            defined = suite.defined_elements(name, given, b)
            same(*((a, b) if defined is ... else (a[defined], b[defined])))


def test_what_the_backend_cannot_do_is_said() -> None:
    case = suite.cases()["test_relu"]
    model = case.model or onnx.load(f"{case.model_dir}/model.onnx")
    with pytest.raises(UsageError, match="device 'CUDA'"):
        prepare(model, "CUDA")
    with pytest.raises(UsageError, match="2 inputs"):
        prepare(model).run([np.zeros((3, 4, 5), np.float32)] * 2)


def test_one_node() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    (got,) = run_node(helper.make_node("Add", ["a", "b"], ["c"]), [x, x])
    np.testing.assert_array_equal(got, 2 * x)
    (got,) = run_node(helper.make_node("Clip", ["a", "", "most"], ["c"]), [x, np.float32(3)])
    np.testing.assert_array_equal(got, np.minimum(x, 3))
    softmax = helper.make_node("Softmax", ["a"], ["c"])  # of all axes from 1 on before opset 13
    (got,) = run_node(softmax, [np.zeros((1, 2, 2), np.float32)], opset_version=11)
    np.testing.assert_allclose(got, np.full((1, 2, 2), 0.25), rtol=1e-6)
    with pytest.raises(UsageError, match="Add reads a, b"):
        run_node(helper.make_node("Add", ["a", "b"], ["c"]), [x])
