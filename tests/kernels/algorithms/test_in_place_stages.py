"""Stages of rows in the result's own memory: where they may be, and that rows come out the same."""

from __future__ import annotations

from math import prod

import numpy as np
import onnx
import pytest

import superopt
from superopt.compilation.cpu.native_segment import NativeSegment
from tests.support.compilation.forms import build, node
from tests.support.compilation.models import near, reference

SOFTMAX = [node("Softmax", ["x"], ["y"], axis=-1)]
RESIDUAL = [node("Softmax", ["x"], ["s"], axis=-1), node("Add", ["s", "x"], ["y"])]
LAST = [node("LogSoftmax", ["x"], ["y"], axis=-1)]


def local(exe: superopt.Executable) -> int:
    """Elements of the largest buffer that the kernels have for themselves."""
    (step,) = exe.variant({})
    assert isinstance(step, NativeSegment)
    found = [t for k in step.code.program.kernels.values() for t, s in k.scratch if s == "local"]
    return max((prod(n for n in t.shape if isinstance(n, int)) for t in found), default=0)


def checked(m: onnx.ModelProto, shape: tuple[int, ...], threads: int) -> superopt.Executable:
    exe = superopt.compile(m, threads=threads)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32) * 5
    near(exe(x=x), reference(m, {"x": x}))
    return exe


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", [(64, 40), (3, 64, 33), (2, 40, 1024), (1400, 512)], ids=str)
def test_exp_is_kept_in_the_result(shape: tuple[int, ...], threads: int) -> None:
    exe = checked(build(SOFTMAX, {"x": shape}), shape, threads)
    assert local(exe) < shape[-1]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("nodes", "shape"),
    [
        (RESIDUAL, (64, 40)),  # the input is read once more: it is another buffer
        (SOFTMAX, (61, 40)),  # blocks of rows overlap
        (SOFTMAX, (40, 1000)),  # tiles of a row do
        (LAST, (64, 40)),
    ],
    ids=str,
)
def test_rows_come_out_the_same(
    nodes: list[onnx.NodeProto], shape: tuple[int, ...], threads: int
) -> None:
    checked(build(nodes, {"x": shape}), shape, threads)


@pytest.mark.parametrize("shape", [(61, 40), (40, 1000)], ids=str)
def test_results_of_two_steps_do_not_overlap(shape: tuple[int, ...]) -> None:
    """A thread's exp would be in the rows that another one sums, and an element scaled twice."""
    assert local(checked(build(SOFTMAX, {"x": shape}), shape, 2)) >= shape[-1]


def test_what_is_computed_fast_stays_in_the_first_cache() -> None:
    nodes = [
        node("Add", ["x", "x"], ["a"]),
        node("LayerNormalization", ["a", "s"], ["y"], axis=-1),
    ]
    m = build(nodes, {"x": (64, 40)})
    m.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(40, np.float32), "s"))
    assert local(checked(m, (64, 40), 1)) >= 40
