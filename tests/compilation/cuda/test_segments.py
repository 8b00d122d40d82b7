"""What a kernel computes more of than it would have to: on a GPU a kernel nevertheless, where that
is less than numbers take to the processor and back."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from superopt.compilation.cuda import code_generator, load_compiler
from superopt.compilation.cuda.segments import GpuSegment
from superopt.onnx_io.read.source import read_model
from tests.support.compilation.models import F, model, reference
from tests.support.gpu.compilation import feeds, near
from tests.support.gpu.device import choose
from tests.support.gpu.models import drawn, node

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("interpreted")]


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    choose(monkeypatch)


def sums() -> onnx.ModelProto:
    nodes = [node("Relu", "x", "a"), node("CumSum", "a", "axis", "b"), node("Relu", "b", "y")]
    return model(nodes, {"x": (F, [2, 40, 6])}, ["y"], {"axis": np.array(1)})


def scattered() -> onnx.ModelProto:
    rows = np.random.default_rng(0).permutation(60)[:20].reshape(20, 1) * np.ones((1, 80), int)
    nodes = [node("Relu", "x", "a"), node("ScatterElements", "a", "rows", "u", "y")]
    return model(nodes, {"x": (F, [60, 80])}, ["y"], {"rows": rows, "u": drawn(20, 80)})


def sampled() -> onnx.ModelProto:
    nodes = [node("Tanh", "g", "at"), node("GridSample", "x", "at", "a"), node("Relu", "a", "y")]
    given = {"x": (F, [1, 5, 9, 8]), "g": (F, [1, 6, 7, 2])}
    return model(nodes, given, ["y"])


@pytest.mark.parametrize("make", [sums, scattered, sampled])
def test_one_graph(make: object, monkeypatch: pytest.MonkeyPatch) -> None:
    m = make()  # type: ignore[operator]
    given = feeds(m)
    exe = load_compiler.compile_model(read_model(m))
    near(exe.run(given), reference(m, given), "fp32")
    assert exe.fallback_nodes({}) == []
    monkeypatch.setattr(code_generator, "MAX_SMALL_OPERATIONS", 1)
    assert [
        n.op.name for n, _ in load_compiler.compile_model(read_model(m)).fallback_nodes({})
    ] != []


def test_shapes_that_are_not_known() -> None:
    """Of nodes that run in onnxruntime for that, nobody asks how much they compute."""
    nodes = [
        node("NonZero", "x", "a"), node("Cast", "a", "b", to=F),
        node("ScatterElements", "b", "rows", "u", "y"),
    ]  # fmt: skip
    m = model(
        nodes, {"x": (F, [4, 4])}, ["y"], {"rows": np.zeros((1, 1), int), "u": drawn(1, 1)},
    )  # fmt: skip
    given = feeds(m)
    exe = load_compiler.compile_model(read_model(m))
    near(exe.run(given), reference(m, given), "fp32")
    assert not any(isinstance(s, GpuSegment) for s in exe.variant({}).steps)
