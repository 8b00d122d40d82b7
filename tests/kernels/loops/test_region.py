"""Which part of a tensor is computed inside a loop: all that is read there, and no more, also where
the last vector of an axis overlaps the one before."""

from dataclasses import replace
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from superopt.ir import graph
from superopt.kernels.loops.loop_transforms import initial_loops
from superopt.kernels.loops.region import read_region
from superopt.kernels.processor import AVX2
from superopt.ops import OPS
from superopt.plan.passes import plan_program
from superopt.plan.program.plan import Settings
from superopt.te.expr import index as te_index
from superopt.te.expr.dtype import F32, INDEX
from superopt.te.expr.node import Axis, Const, Expr
from superopt.te.expr.tensor import Tensor, TensorType, compute


@given(st.integers(1, 60), st.integers(1, 8), st.integers(1, 4), st.integers(1, 4), st.data())
def test_all_that_is_read_and_no_more(
    n: int, lanes: int, at_a_time: int, more: int, data: st.DataObject
) -> None:
    """Of elements min(o * a + b, last) * step + lane, for each o."""
    lanes = min(lanes, n)
    step = data.draw(st.sampled_from([d for d in range(1, lanes + 1) if (n - lanes) % d == 0]))
    last = (n - lanes) // step
    o = Axis("o", -(-(last + 1) // at_a_time) + more - 1)
    b, lane = Axis("b", at_a_time), Axis("lane", lanes)
    vector = te_index.apply(
        "min", (te_index.as_index(o * at_a_time + b), Const(last, INDEX)), INDEX
    )
    index = te_index.as_index(vector * step + lane)
    t = Tensor("t", F32, (n,))
    reader = compute((n,), lambda i: t[i])
    s = replace(initial_loops(reader), axis_values=((reader.axes[0], index),))
    ((begin, size),) = read_region(t, [s], [o])
    assert size <= min(n, (at_a_time - 1) * step + lanes)
    for k in range(o.extent if isinstance(o.extent, int) else 0):
        low = value(begin, {o: k})
        read = [value(index, {o: k, b: x, lane: y}) for x in range(at_a_time) for y in range(lanes)]
        assert 0 <= low <= min(read)
        assert max(read) < low + size <= n


def value(e: Expr, at: dict[Axis, int]) -> int:
    found = te_index.substitute(e, {a: Const(n, INDEX) for a, n in at.items()})
    assert isinstance(found, Const)
    return int(found.value)


@pytest.mark.parametrize("c", [20, 33, 50, 77, 100])
def test_no_more_is_kept_where_channels_are_no_whole_vectors(c: int) -> None:
    """A convolution in tiles, of which a block of channels is computed at a time: the numbers that
    its kernels hold do not grow with the channels."""
    held = [_held(n) for n in (c, -(-c // 8) * 8)]
    assert held[0] <= 2 * held[1], held


def _held(c: int) -> int:
    x = graph.Input("x", TensorType(F32, (1, 64, 26, 26)))
    w = graph.constant(np.ones((c, 64, 3, 3), np.float32))
    y = graph.node(OPS["Conv"], [x, w], pads=(1, 1, 1, 1))
    made = plan_program(graph.Graph((x,), (y,)), {}, Settings(32, processor=AVX2))
    assert any(o.algorithm == "winograd" for o in made.options.values())
    sizes = [
        prod(n for n in t.shape if isinstance(n, int))
        for k in made.kernels.values() for t, where in k.scratch if where == "register"
    ]  # fmt: skip
    return max(sizes)
