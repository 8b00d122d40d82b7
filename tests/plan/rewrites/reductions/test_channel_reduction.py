"""Sums over channels and places of a picture: by channel first, and equal to what they were."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

import superopt
from superopt.kernels.loops.layout import parse_layout
from superopt.kernels.loops.loop_transforms import reduction
from superopt.plan.rewrites.reductions.channel_reduction import split_channel_reductions
from superopt.te.expr.dtype import F32
from superopt.te.expr.tensor import Tensor, TensorType, compute, placeholder, reduce_sum
from tests.support.compilation.models import F, model, near, reference

pytest.importorskip("onnxruntime")


def normed(c: int, groups: int) -> list:
    """Of a convolution's result: as GroupNorm is exported."""
    return [
        helper.make_node("Reshape", ["a", "in_groups"], ["b"]),
        helper.make_node("InstanceNormalization", ["b", "ones", "zeros"], ["n"], epsilon=1e-5),
        helper.make_node("Shape", ["a"], ["s"]),
        helper.make_node("Reshape", ["n", "s"], ["y"]),
    ]


def reduced(op: str, **attrs: object) -> list:
    return [helper.make_node(op, ["a"], ["y"], **attrs)]


# channels, groups, places; what follows the convolution; are channels summed by themselves?
CASES = {
    "one group": (32, 1, 9, normed(32, 1), True),
    "groups of eight": (32, 4, 9, normed(32, 4), True),
    "groups of four": (32, 8, 7, normed(32, 8), True),
    "groups that cross blocks": (48, 2, 6, normed(48, 2), True),
    "groups of one": (16, 16, 9, normed(16, 16), False),
    "channels that are no block": (20, 4, 8, normed(20, 4), True),
    "all of a picture": (32, 1, 9, reduced("ReduceMean", axes=[1, 2, 3]), True),
    "the largest of a picture": (32, 1, 9, reduced("ReduceMax", axes=[1, 2, 3]), True),
    "squares of a row": (32, 1, 9, reduced("ReduceSumSquare", axes=[1, 3]), True),
    "channels only": (32, 1, 9, reduced("ReduceMean", axes=[1]), False),
    "places only": (32, 1, 9, reduced("ReduceMean", axes=[2, 3]), False),
    "few places": (32, 1, 2, reduced("ReduceMean", axes=[1, 2, 3]), False),
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", CASES)
def test_sums_are_what_they_were(name: str) -> None:
    c, groups, size, nodes, apart = CASES[name]
    rng = np.random.default_rng(0)
    held = {
        "w": rng.standard_normal((c, 3, 3, 3)).astype(np.float32),
        "in_groups": np.array([0, groups, -1]),
        "ones": rng.standard_normal(groups).astype(np.float32),
        "zeros": rng.standard_normal(groups).astype(np.float32),
    }
    first = helper.make_node("Conv", ["x", "w"], ["a"], pads=[1] * 4)
    m = model([first, *nodes], {"x": (F, [2, 3, size, size])}, ["y"], held)
    x = rng.standard_normal((2, 3, size, size)).astype(np.float32)
    exe = superopt.compile(m)
    near(exe(x=x), reference(m, {"x": x}))
    (step,) = exe.variants[()]
    assert any(t.name == "channels" for t in step.code.program.call_results) == apart


def test_where_a_place_lies_is_counted_no_more() -> None:
    """k // 42, k // 7 % 6 and k % 7 become three axes, of which the first is left."""
    x = placeholder("x", TensorType(F32, (1, 16, 6, 7)))
    t = compute(
        (1, 2), lambda n, g: reduce_sum(8 * 42, lambda k: x[n, g * 8 + k // 42, k // 7 % 6, k % 7])
    )
    made = split_channel_reductions({t: t}, (), {x: parse_layout("i0 i1//16 i2 i3 i1%16")})
    each, whole = made
    assert whole is t
    assert [a.extent for a in each.axes] == [1, 16]
    found, last = reduction(each), reduction(made[t])
    assert found is not None
    assert last is not None
    assert [a.extent for a in found.axes] == [6, 7]
    assert [a.extent for a in last.axes] == [8]


@pytest.mark.parametrize(("layout", "made"), [("i0 i1 i2 i3", 1), ("i0 i2 i3 i1", 2)])
def test_strided_channels_are_unchanged(layout: str, made: int) -> None:
    x = placeholder("x", TensorType(F32, (1, 16, 6, 7)))
    t: Tensor = compute((1,), lambda n: reduce_sum((16, 6, 7), lambda c, i, j: x[n, c, i, j]))
    found = split_channel_reductions({t: t}, (), {x: parse_layout(layout)})
    assert len(found) == made
    assert (found[t] == t) == (made == 1)
