"""How much faster a compiled model is, measured in a process of its own."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from superopt.jobs import compiled_speedup
from superopt.jobs.compiled_speedup import measure_compiled_speedup


@pytest.fixture
def model(tmp_path: Path) -> Path:
    w = numpy_helper.from_array(np.ones((64, 64), np.float32), "w")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 64])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 64])
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [w])
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def test_the_ratio_has_an_interval(model: Path) -> None:
    found = measure_compiled_speedup(model, 1, {"n": 32}, 30.0)
    assert found is not None
    low, middle, high = found
    assert 0 < low <= middle <= high


def test_too_little_time_gives_nothing_and_ends(model: Path) -> None:
    begin = time.monotonic()
    assert measure_compiled_speedup(model, 1, {"n": 32}, 0.1) is None
    assert time.monotonic() - begin < 5


def test_a_model_that_does_not_run(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"nothing")
    assert measure_compiled_speedup(tmp_path / "m.onnx", 1, {}, 30.0) is None


def test_without_children(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_speedup, "CAN_RUN_CHILDREN", False)
    assert measure_compiled_speedup(model, 1, {"n": 32}, 30.0) is None
