"""The first of some numbers on a GPU: by how many there are before each."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from superopt.compilation.cuda import code_generator, load_compiler
from superopt.onnx_io.read.source import read_model
from superopt.plan.graph.slow_nodes import MAX_TOPK_EXTENT
from tests.support.compilation.models import model, reference
from tests.support.gpu.models import drawn

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("interpreted")]


def top(x: np.ndarray, k: int, **how: int) -> onnx.ModelProto:
    n = helper.make_node("TopK", ["x", "k"], ["v", "i"], **how)
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    return model([n], {"x": (kind, list(x.shape))}, ["v", "i"], {"k": np.array([k])})


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", [np.float32, np.int64, np.float16])
@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize(
    ("shape", "k", "axis"), [((5, 8), 2, -1), ((3, 11, 4), 11, 1), ((1, 7), 1, 0), ((64,), 5, 0)]
)
def test_the_first(
    shape: tuple[int, ...], k: int, axis: int, largest: int, kind: type[np.generic]
) -> None:
    """Of which many are equal: then the one that comes first."""
    x = np.rint(drawn(*shape) * 3).astype(kind)
    m = top(x, k, axis=axis, largest=largest)
    if kind == np.float16:  # which onnxruntime computes of none
        wanted = reference(top(x.astype(np.float32), k, axis=axis, largest=largest),
                           {"x": x.astype(np.float32)})  # fmt: skip
    else:
        wanted = reference(m, {"x": x})
    exe = load_compiler.compile_model(read_model(m))
    got = exe.run({"x": x})
    assert exe.fallback_nodes({}) == []
    for name, numbers in wanted.items():
        np.testing.assert_array_equal(got[name], numbers)
    assert got["v"].dtype == kind


def test_of_many_they_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_generator, "MAX_SMALL_OPERATIONS", 1)
    for n, fallen in ((MAX_TOPK_EXTENT, 0), (MAX_TOPK_EXTENT + 1, 1)):
        exe = load_compiler.compile_model(read_model(top(drawn(2, n), 3)))
        exe.run({"x": drawn(2, n)})
        assert len(exe.fallback_nodes({})) == fallen


def test_an_axis_of_one_and_its_index() -> None:
    """Comparisons of indices that are numbers."""
    x = drawn(4, 1)
    got = load_compiler.compile_model(read_model(top(x, 1, axis=1))).run({"x": x})
    np.testing.assert_array_equal(got["v"], x)
    assert got["i"].dtype == np.int64
    assert not got["i"].any()
