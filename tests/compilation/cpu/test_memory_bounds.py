"""Kernels touch no memory beyond their arrays: it may belong to nobody."""

from __future__ import annotations

import os
import sys

import numpy as np
import onnx
import pytest
from onnx import helper

import superopt
from superopt.compilation.cpu.native_segment import NativeSegment
from tests.support.compilation.guarded_memory import run_guarded
from tests.support.compilation.models import F, model, near, reference

pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="memory is guarded by mprotect")
TABLE = np.random.default_rng(0).standard_normal((5, 8)).astype(np.float32)


def padded_gather() -> onnx.ModelProto:
    """The index beyond the last row is read, unless it is kept within."""
    nodes = [
        helper.make_node("Cast", ["x"], ["i"], to=7),
        helper.make_node("Gather", ["t", "i"], ["a"]),
        helper.make_node("Pad", ["a", "p"], ["y"]),
    ]
    return model(nodes, {"x": (F, [8, 7])}, ["y"], {"t": TABLE, "p": np.array([0, 0, 0, 1, 0, 0])})


def padded_softmax() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Softmax", ["x"], ["a"], axis=1),
        helper.make_node("Transpose", ["a"], ["b"], perm=[1, 0]),
        helper.make_node("Pad", ["b", "p"], ["y"]),
    ]
    return model(nodes, {"x": (F, [8, 7])}, ["y"], {"p": np.array([0, 0, 0, 2])})


@pytest.mark.parametrize("make", [padded_gather, padded_softmax])
def test_pads_read_nothing_beyond_an_input(make) -> None:  # type: ignore[no-untyped-def]
    m = make()
    exe = superopt.compile(m, threads=1)
    feeds = {"x": np.abs(np.random.default_rng(1).standard_normal((8, 7)).astype(np.float32))}
    near(exe.run(feeds), reference(m, feeds))
    (variant,) = exe.variants.values()
    (step,) = variant.steps
    assert isinstance(step, NativeSegment)
    sys.stdout.flush()
    child = os.fork()
    if child == 0:  # a fault ends it
        code = 1
        try:
            near(dict(run_guarded(step, exe.input_arrays(feeds))), reference(m, feeds))
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
