"""Convolutions of which most terms are zeros of the padding: in parts, and equal to the whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import superopt
from superopt import ort
from superopt.ir.op import canonical_attrs, expression
from superopt.ops import OPS
from superopt.plan.lowering.dilated_conv_split import split_windows
from superopt.te.expr.dtype import F32
from superopt.te.expr.tensor import TensorType
from tests.support.compilation.models import F, model, near, reference

# picture, kernel, pads, dilations, strides, groups; how many parts there are
CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict, int]] = {
    "an edge is reached by few": (
        (1, 16, 14, 14), (32, 16, 3, 3), {"pads": [12] * 4, "dilations": [12, 12]}, 9,
    ),
    "only the middle counts": (
        (1, 16, 14, 14), (32, 16, 3, 3), {"pads": [24] * 4, "dilations": [24, 24]}, 1,
    ),
    "along one axis": (
        (1, 16, 14, 40), (24, 16, 3, 3), {"pads": [12, 1, 12, 1], "dilations": [12, 1]}, 3,
    ),
    "with strides": (
        (1, 16, 15, 13), (16, 16, 3, 3),
        {"pads": [9] * 4, "dilations": [9, 9], "strides": [2, 3]}, 9,
    ),
    "in groups": (
        (1, 32, 12, 12), (32, 1, 3, 3), {"pads": [10] * 4, "dilations": [10, 10], "group": 32}, 9,
    ),
    "five by five": (
        (1, 16, 9, 9), (16, 16, 5, 5), {"pads": [8] * 4, "dilations": [4, 4]}, 25,
    ),
    "more batches": (
        (2, 16, 10, 10), (16, 16, 3, 3), {"pads": [9] * 4, "dilations": [9, 9]}, 9,
    ),
    "beyond the edge nothing counts": (
        (1, 16, 6, 6), (16, 16, 3, 3), {"pads": [9] * 4, "dilations": [2, 2]}, 0,
    ),
    "a depth of two slices": ((1, 16, 2, 7, 7), (16, 16, 3, 3, 3), {"pads": [1] * 6}, 2),
    "an ordinary border": ((1, 16, 14, 14), (16, 16, 3, 3), {"pads": [1] * 4}, 0),
    "no border": ((1, 16, 14, 14), (16, 16, 3, 3), {"dilations": [4, 4]}, 0),
}  # fmt: skip


def parts(name: str) -> int:
    shape, weight, attrs, _ = CASES[name]
    types = (TensorType(F32, shape), TensorType(F32, weight))
    given = {k: tuple(v) if isinstance(v, list) else v for k, v in attrs.items()}
    (t,) = expression(OPS["Conv"], types, canonical_attrs(OPS["Conv"], types, given))
    found = split_windows(t)
    seen = np.zeros([int(n) for n in t.shape if isinstance(n, int)], int)
    for x in found:
        size = [int(n) for n in x.tensor.shape if isinstance(n, int)]
        seen[tuple(slice(b, b + n) for b, n in zip(x.begin, size, strict=True))] += 1
    assert not found or (seen == 1).all()
    return len(found)


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", CASES)
def test_parts_are_the_whole(name: str, tmp_path: Path) -> None:
    shape, weight, attrs, count = CASES[name]
    assert parts(name) == count
    pytest.importorskip("onnxruntime")
    rng = np.random.default_rng(0)
    held = {"w": rng.standard_normal(weight).astype(np.float32),
            "b": rng.standard_normal(weight[0]).astype(np.float32)}  # fmt: skip
    nodes = [helper.make_node("Conv", ["x", "w", "b"], ["a"], **attrs),
             helper.make_node("Relu", ["a"], ["y"])]  # fmt: skip
    made = model(nodes, {"x": (F, list(shape))}, ["y"], held)
    onnx.save(made, tmp_path / "m.onnx")
    x = rng.standard_normal(shape).astype(np.float32)
    (wanted,) = ort.run(ort.load_session(tmp_path / "m.onnx", 1), {"x": x}).values()
    got = superopt.compile(made)(x=x)["y"]
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=2e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("partial", [True, False])
def test_dilated_convolutions_in_tiles(partial: bool) -> None:
    """As dense ones of every other element; not, where nothing equal in parts may be used."""
    w = np.random.default_rng(0).standard_normal((32, 32, 3, 3)).astype(np.float32) / 17
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], pads=[2] * 4, dilations=[2, 2])]
    m = model(nodes, {"x": (F, [1, 32, 27, 30])}, ["y"], {"w": w})
    x = np.random.default_rng(1).standard_normal((1, 32, 27, 30)).astype(np.float32)
    exe = superopt.compile(m, partial=partial)
    near(exe(x=x), reference(m, {"x": x}))
    (step,) = exe.variants[()]
    found = {o.algorithm for o in step.code.program.options.values()}
    assert ("winograd" in found) == partial
