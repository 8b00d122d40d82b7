"""Models of several parts, kernels and sessions in turn: as one function, and as each by itself."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from onnx import helper

import superopt
from superopt.compilation.cpu.native_segment import NativeSegment
from superopt.compilation.fallback.session_segment import OrtSegment
from superopt.errors import UsageError
from tests.support.compilation.models import F, Model, model, near, reference

pytest.importorskip("onnxruntime")


def parts(size: int | str = 500) -> Model:
    """A product, running sums (onnxruntime's), and a product of these."""
    rng = np.random.default_rng(0)
    held = {
        "w": rng.standard_normal((64, 64)).astype(np.float32) / 8,
        "v": rng.standard_normal((64, 64)).astype(np.float32) / 8,
        "axis": np.array(0),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("CumSum", ["b", "axis"], ["c"]),
        helper.make_node("MatMul", ["c", "v"], ["d"]),
        helper.make_node("Tanh", ["d"], ["y"]),
    ]
    return model(nodes, {"x": (F, [size, 64])}, ["y", "c"], held)


def given(size: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((size, 64)).astype(np.float32)


@pytest.mark.parametrize("threads", [1, 2])
def test_it_computes_the_model_again_and_again(threads: int) -> None:
    m = parts()
    exe = superopt.compile(m, threads=threads)
    results = [exe(x=given(500, k)) for k in range(4)]
    (steps,) = exe.variants.values()
    assert [type(s) for s in steps] == [NativeSegment, OrtSegment, NativeSegment]
    assert exe.last_call is not None
    near(exe.last_call({"x": given(500, 9)}), reference(m, {"x": given(500, 9)}))
    for k, got in enumerate(results):  # each call has arrays of its own
        near(got, reference(m, {"x": given(500, k)}))


def test_other_sizes_have_functions_of_their_own() -> None:
    m = parts("n")
    exe = superopt.compile(m)
    for size in (500, 500, 423, 423, 500):
        near(exe(x=given(size, size)), reference(m, {"x": given(size, size)}))


def test_several_threads_may_call_it() -> None:
    m = parts()
    exe = superopt.compile(m)
    exe(x=given(500, 0))
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda k: exe(x=given(500, k)), range(40)))
    for k, got in enumerate(results):
        near(got, reference(m, {"x": given(500, k)}))


def test_what_does_not_fit_is_said_as_before() -> None:
    exe = superopt.compile(parts())
    exe(x=given(500, 0))
    with pytest.raises(UsageError, match=r"x.*\[500, 64\]"):
        exe(x=given(499, 0))
    with pytest.raises(UsageError, match="no input"):
        exe.run({"z": given(500, 0)})
