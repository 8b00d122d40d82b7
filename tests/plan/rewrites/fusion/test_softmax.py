"""Softmax along an axis that is not the last one: exp is computed once."""

from __future__ import annotations

import numpy as np
import pytest

import superopt
from superopt.compilation.cpu.native_segment import NativeSegment
from superopt.te.analysis.walk import subexpressions
from superopt.te.expr.node import Apply
from tests.support.compilation.forms import build, node
from tests.support.compilation.models import near, reference


def exponentials(exe: superopt.Executable) -> int:
    """In all kernels."""
    (step,) = exe.variant({})
    assert isinstance(step, NativeSegment)
    bodies = [p.tensor.body for p in step.code.program.problems.values()]
    every = (e for b in bodies if b is not None for e in subexpressions(b))
    return sum(isinstance(e, Apply) and e.fn == "exp" for e in every)


@pytest.mark.parametrize(
    ("shape", "axis"), [((7, 11, 13), 1), ((9, 5), 0), ((2, 3, 4, 70), 2), ((2, 6, 1, 5), 1)]
)
def test_along_another_axis(shape: tuple[int, ...], axis: int) -> None:
    m = build([node("Softmax", ["x"], ["y"], axis=axis)], {"x": shape})
    exe = superopt.compile(m)
    assert exponentials(exe) == 1
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32) * 9
    near(exe(x=x), reference(m, {"x": x}))


def test_two_of_one() -> None:
    nodes = [
        node("Softmax", ["x"], ["a"], axis=1),
        node("Softmax", ["x"], ["b"], axis=0),
        node("LogSoftmax", ["x"], ["c"], axis=1),
        node("Mul", ["a", "b"], ["d"]),
        node("Add", ["d", "c"], ["y"]),
    ]
    m = build(nodes, {"x": (4, 9, 10)})
    x = np.random.default_rng(0).standard_normal((4, 9, 10)).astype(np.float32)
    near(superopt.compile(m)(x=x), reference(m, {"x": x}))


@pytest.mark.parametrize("function", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("reader", ["Pad", "Trilu"])
def test_a_reader_that_compares_indices(function: str, reader: str) -> None:
    """An index alone is no candidate for the exponentials of a row."""
    constants = {"pads": np.array([0, 1, 0, 0, 1, 0])} if reader == "Pad" else {}
    nodes = [
        node(function, ["x"], ["s"], axis=1),
        node(reader, ["s", *constants], ["y"]),
    ]
    m = build(nodes, {"x": (3, 6, 5)}, constants)
    x = np.random.default_rng(0).standard_normal((3, 6, 5)).astype(np.float32)
    near(superopt.compile(m)(x=x), reference(m, {"x": x}))
