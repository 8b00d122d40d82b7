"""`enter`: where arrays are is read in machine code, or asked for where that cannot be."""

from __future__ import annotations

import ctypes
import sys

import numpy as np
import pytest

import superopt
from superopt.compilation.cpu.native_segment import NativeSegment
from superopt.kernels.llvm import numpy_entry
from superopt.plan.program import execute
from tests.support.compilation.models import matmul, net, picture

X = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.mark.skipif(sys.implementation.name != "cpython", reason="objects lie otherwise")
def test_places_are_those_of_objects() -> None:
    found = numpy_entry.object_offsets()
    assert found is not None
    items, data = found
    a = np.arange(6.0)[2:]
    held = (None, a)
    assert ctypes.c_void_p.from_address(id(held) + items + 8).value == id(a)
    assert ctypes.c_void_p.from_address(id(a) + data).value == a.ctypes.data


@pytest.mark.one_in(2)
@pytest.mark.parametrize("threads", [1, 2])
def test_without_it_the_same_is_computed(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x = picture(1, 9)
    with_it = superopt.compile(net(9), threads=threads, specialize="eager")(x=x)
    monkeypatch.setattr(execute, "object_offsets", lambda: None)
    exe = superopt.compile(net(9), threads=threads, specialize="eager")
    (step,) = exe.variant({"n": 1})
    assert isinstance(step, NativeSegment)
    assert step.code.enter is None
    for name, wanted in with_it.items():
        np.testing.assert_array_equal(exe(x=x)[name], wanted)


def test_calls_after_the_first_look_at_inputs_as_well() -> None:
    exe = superopt.compile(matmul())
    w = np.arange(8, dtype=np.float32).reshape(4, 2)
    wide = np.zeros((3, 8), np.float32)
    wide[:, ::2] = X
    big = np.ones((5, 4), np.float32)
    for x in (X, X, wide[:, ::2], X, np.asfortranarray(X), big, X, X.tolist(), X):
        np.testing.assert_allclose(exe(x=x)["y"], np.asarray(x) @ w)
    for feeds, why in (
        ({"x": X.astype(np.float64)}, "float64"), ({"z": X}, "no input 'z'"),
        ({"x": X, "z": X}, "no input 'z'"), ({}, "no value"), ({"x": X[0]}, "rank 2"),
        ({"x": X[:, :3].copy()}, "axis 1 is 3, not 4"),
    ):  # fmt: skip
        with pytest.raises(superopt.UsageError, match=why):
            exe.run(feeds)
    np.testing.assert_allclose(exe(x=X)["y"], X @ w)
