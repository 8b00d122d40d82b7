"""What onnxruntime gives is looked at before kernels read it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import superopt
from tests.support.compilation.models import F, model, near, reference

pytest.importorskip("onnxruntime")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPEROPT_CACHE", str(tmp_path / "cache"))


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def behind(first: list, shape: list[int], **more: np.ndarray) -> onnx.ModelProto:
    """Work for kernels behind a node in onnxruntime."""
    nodes = [
        *first,
        helper.make_node("Conv", ["a", "w"], ["b"], pads=[1] * 4),
        helper.make_node("Tanh", ["b"], ["y"]),
    ]
    w = drawn(32, shape[1], 3, 3)
    return model(nodes, {"x": (F, shape)}, ["y"], {"w": w, **more})


def test_a_size_that_onnx_infers_and_runtimes_round_otherwise() -> None:
    """50 * float32(0.7) is 34.99..., which ONNX's inference cuts, and onnxruntime says 35."""
    scales = np.array([1, 1, 0.7, 0.7], np.float32)
    first = [helper.make_node("Resize", ["x", "", "scales"], ["a"], mode="linear")]
    m = behind(first, [1, 16, 50, 50], scales=scales)
    x = drawn(1, 16, 50, 50)
    wanted = reference(m, {"x": x})
    exe = superopt.compile(m)
    for _ in range(3):  # as it is compiled first, then all of it in onnxruntime
        near(exe(x=x), wanted)
    near(superopt.compile(m)(x=x * 2), reference(m, {"x": x * 2}))


def test_a_shape_that_a_model_says_wrongly() -> None:
    """Rows that are not there were read: of what lies behind, or a segmentation fault."""
    nodes = [
        helper.make_node("NonZero", ["x"], ["i"]),
        helper.make_node("Transpose", ["i"], ["t"], perm=[1, 0]),
        helper.make_node("Cast", ["t"], ["a"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["a", "w"], ["b"]),
        helper.make_node("Tanh", ["b"], ["c"]),
        helper.make_node("MatMul", ["c", "v"], ["y"]),
    ]
    m = model(nodes, {"x": (F, [300])}, ["y"], {"w": drawn(1, 256), "v": drawn(256, 64)})
    m.graph.value_info.append(helper.make_tensor_value_info("i", TensorProto.INT64, [1, 400_000]))
    x = np.zeros(300, np.float32)
    x[[3, 7]] = 1
    exe = superopt.compile(m)
    wanted = reference(m, {"x": x})
    assert wanted["y"].shape == (2, 64)
    for _ in range(2):
        near(exe(x=x), wanted)
    assert {why for _, why in exe.fallback_nodes({})} != {""}


def test_wrong_shapes_are_reported_without_a_fallback() -> None:
    scales = np.array([1, 1, 0.7, 0.7], np.float32)
    first = [helper.make_node("Resize", ["x", "", "scales"], ["a"], mode="linear")]
    exe = superopt.compile(behind(first, [1, 16, 50, 50], scales=scales))
    with pytest.raises(superopt.ModelError, match=r"a is float32\[1, 16, 35, 35\] in onnxruntime"):
        exe.variants[()][0].run({exe.model.graph.inputs[0]: drawn(1, 16, 50, 50)})


def test_it_is_profiled_before_it_was_called() -> None:
    scales = np.array([1, 1, 0.7, 0.7], np.float32)
    first = [helper.make_node("Resize", ["x", "", "scales"], ["a"], mode="linear")]
    exe = superopt.compile(behind(first, [1, 16, 50, 50], scales=scales))
    found = exe.profile(seconds=0.01)
    assert [p.how for p in found.parts] == ["onnxruntime"]
