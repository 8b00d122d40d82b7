"""Windows, phases of strides, and scatters: which are lowered to kernels, and to which."""

from __future__ import annotations

import numpy as np
import pytest

import superopt
from superopt.ir.op import expression
from superopt.plan.lowering.polyphase import split_phases
from superopt.te.analysis.walk import reductions
from tests.support.compilation.forms import build, feeds_of, node
from tests.support.compilation.models import near, reference
from tests.support.ops.build import made


@pytest.mark.parametrize("kernel", [(2, 2), (3, 3), (5, 5)])
def test_a_nan_is_the_largest_of_each_window_that_has_it(kernel: tuple[int, int]) -> None:
    pool = node("MaxPool", ["x"], ["y"], kernel_shape=list(kernel))
    m = build([pool], {"x": (1, 16, 9, 9)})
    x = np.random.default_rng(0).standard_normal((1, 16, 9, 9)).astype(np.float32)
    for channel in range(16):
        x[0, channel, channel % 9, (3 * channel) % 9] = np.nan
    high, wide = kernel
    windows = np.lib.stride_tricks.sliding_window_view(x, (1, 1, high, wide))
    wanted = windows.max(axis=(4, 5, 6, 7))  # NumPy's is NaN where one is
    assert np.isnan(wanted).any()
    np.testing.assert_array_equal(superopt.compile(m).run({"x": x})["y"], wanted)


def test_what_onnxruntime_does_faster_runs_there() -> None:
    """A kernel compares each place with each index, where updates are smaller than the data on
    another axis; it is taken where there is nothing else."""
    indices = np.arange(16).reshape(8, 2) % 8
    nodes = [node("ScatterElements", ["x", "i", "u"], ["y"])]
    m = build(nodes, {"x": (900, 3), "u": (8, 2)}, {"i": indices})
    feeds = feeds_of({"x": (900, 3), "u": (8, 2)})
    exe = superopt.compile(m)
    ((_, why),) = exe.fallback_nodes({})
    assert why == "a kernel would compare each element with all indices"
    near(exe.run(feeds), reference(m, feeds))
    for count in (1, 8):  # where it is next to nothing
        one = build(nodes, {"x": (9, 3), "u": (count, 2)}, {"i": indices[:count]})
        assert not superopt.compile(one).fallback_nodes({})


def test_a_stride_longer_than_the_kernel_leaves_phases_of_nothing() -> None:
    """It was one sum, whose terms were asked one by one whether they count."""
    n = made("ConvTranspose", "f32[1,8,7,6] f32[8,20,2,3] strides=(3,4)")
    types = tuple(None if v is None else v.type for v in n.inputs)
    (t,) = expression(n.op, types, n.attrs)
    assert [bool(reductions(p.tensor.body)) for p in split_phases(t)] == (
        [True, True, False] * 3 + [False] * 3
    )
