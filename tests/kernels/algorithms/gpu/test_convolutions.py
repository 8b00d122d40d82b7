"""Pictures on a GPU: what tensor cores take of convolutions in groups, with few channels, and of
joined pictures; and means of whole pictures, in parts."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import superopt
from superopt.kernels.algorithms.gpu import row_programs, window_tiles
from superopt.kernels.triton.codegen import triton_text
from tests.support.compilation.models import F, model, reference
from tests.support.gpu.compilation import feeds, near
from tests.support.gpu.device import choose
from tests.support.gpu.models import (
    conv,
    drawn,
    node,
)

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("interpreted")]


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    choose(monkeypatch)


def in_groups(made: int, given: int, groups: int, *size: int, kernel: int = 3, **how: Any) -> Any:
    """A convolution in groups, of any number of dimensions."""
    w = drawn(made, given // groups, *[kernel] * len(size), scale=0.2)
    pads = [kernel // 2] * 2 * len(size)
    nodes = [
        node("Conv", "x", "w", "b", "a", group=groups, pads=pads, **how),
        node("Relu", "a", "y"),
    ]
    return model(nodes, {"x": (F, [1, given, *size])}, ["y"], {"w": w, "b": drawn(made)})


def normed(groups: int) -> onnx.ModelProto:
    """A group norm, as it is exported."""
    nodes = [
        node("Conv", "x", "w", "a"), node("Reshape", "a", "in_groups", "g"),
        node("InstanceNormalization", "g", "s", "b", "n"), node("Shape", "a", "shape"),
        node("Reshape", "n", "shape", "y"),
    ]  # fmt: skip
    known = {
        "w": drawn(16, 4, 1, 1), "in_groups": np.array([0, groups, -1]),
        "s": drawn(groups), "b": drawn(groups),
    }  # fmt: skip
    return model(nodes, {"x": (F, [1, 4, 40, 32])}, ["y"], known)


def joined() -> onnx.ModelProto:
    """A convolution of two pictures, both of which are read elsewhere, too."""
    nodes = [
        node("Relu", "x", "a"), node("Tanh", "x", "b"), node("Concat", "a", "b", "c", axis=1),
        node("Conv", "c", "w", "d", pads=[1] * 4), node("Concat", "a", "d", "y", axis=1),
    ]  # fmt: skip
    return model(nodes, {"x": (F, [1, 8, 6, 7])}, ["y"], {"w": drawn(16, 16, 3, 3, scale=0.2)})


# How the convolution, or the sums, are computed: the algorithm, columns of a block, and how many
# kernels there are of it.
CASES = {
    "groups of sixteen": (lambda: in_groups(32, 32, 2, 6, 6), ("gemm", 16), 1),
    "groups of four": (lambda: in_groups(64, 64, 16, 5, 6), ("gemm", 16), 1),
    "groups of eight, made of four": (lambda: in_groups(64, 32, 8, 5, 6), ("gemm", None), 1),
    "five groups of four": (lambda: in_groups(20, 20, 5, 6, 6), ("gemm", None), 1),
    "along one dimension": (lambda: in_groups(32, 32, 2, 20, kernel=5), ("gemm", 16), 1),
    "along three": (lambda: in_groups(32, 32, 8, 3, 4, 4), ("gemm", 16), 1),
    "with steps": (lambda: in_groups(32, 32, 2, 7, 7, strides=[2, 2]), ("gemm", 16), 1),
    "of two each": (lambda: in_groups(16, 16, 8, 5, 5), ("gemm", None), 0),
    "three channels": (lambda: conv(32, 3, 18, 3), ("gemm", 16), 2),
    "one channel": (lambda: conv(32, 1, 18, 3), ("gemm", 16), 2),
    "three of few places": (lambda: conv(32, 3, 6, 3), ("gemm", 16), 0),
    "joined": (joined, ("gemm", 16), 1),
}  # fmt: skip


@pytest.mark.round_robin(2)
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("name", CASES)
def test_the_same(name: str, precision: str) -> None:
    make, (algorithm, columns), count = CASES[name]
    m = make()
    given = feeds(m)
    exe = superopt.compile(m, target="cuda", precision=precision, vendor=False)
    near(exe.run(given), reference(m, given), precision)
    (part,) = exe.variant({}).kernel_steps
    options = [part.program.options[key] for key in part.program.call_problems]
    some = [o for o in options if o.algorithm == algorithm]
    assert len(some) == count
    assert columns is None or {o["columns"] for o in some} <= {columns}


PICTURE = {"x": (F, [1, 4, 40, 32])}
SUMS = {
    "mean": lambda: model([node("ReduceMean", "x", "y", axes=[2, 3])], PICTURE, ["y"], {}),
    "largest": lambda: model([node("ReduceMax", "x", "y", axes=[2, 3])], PICTURE, ["y"], {}),
    "group norm": lambda: normed(2),
    "norm of one group": lambda: normed(1),
}


@pytest.mark.parametrize("name", SUMS)
def test_split_reductions(name: str) -> None:
    m = SUMS[name]()
    given = feeds(m)
    exe = superopt.compile(m, target="cuda")
    near(exe.run(given), reference(m, given), "fp32")
    (part,) = exe.variant({}).kernel_steps
    results = part.program.call_results
    some = [t for t in results if t.name == "parts"]
    assert len({*some}) == (2 if "norm" in name else 1)  # of a mean, and of a variance
    assert all(t.shape[0] >= 8 for t in some)
    assert not any(t.name == "channels" for t in results)  # these are what parts are of


@pytest.mark.parametrize("precision", ["fp16", "bf16", "tf32"])
def test_partial_sums_are_float32(precision: str) -> None:
    """A mean of products is small where the sums of its parts are beyond float16."""
    picture = {"x": (F, [1, 2, 64, 32]), "m": (F, [1, 2, 64, 32])}
    nodes = [
        node("Mul", "x", "m", "a"),
        node("ReduceMean", "a", "b", axes=[2, 3], keepdims=0), node("Relu", "b", "y"),
    ]  # fmt: skip
    m = model(nodes, picture, ["y"], {})
    rng = np.random.default_rng(0)
    given = {n: (rng.random((1, 2, 64, 32)) * 60 + 40).astype(np.float32) for n in ("x", "m")}
    exe = superopt.compile(m, target="cuda", precision=precision)
    near(exe.run(given), reference(m, given), "fp32")


def windows(side: int, size: tuple[int, int] = (9, 11), **how: Any) -> onnx.ModelProto:
    """Of each channel, between products, so that channels lie last."""
    known = {"w": drawn(24, 4, 1, 1), "d": drawn(24, 1, side, side), "v": drawn(8, 24, 1, 1)}
    nodes = [
        node("Conv", "x", "w", "a"), node("Conv", "a", "d", "b", group=24, **how),
        node("Conv", "b", "v", "y"),
    ]  # fmt: skip
    return model(nodes, {"x": (F, [1, 4, *size])}, ["y"], known)


@pytest.mark.parametrize("stacked", [2, 4, 7])
@pytest.mark.parametrize(
    ("side", "how"),
    [(5, {"pads": [2] * 4}), (3, {"strides": [2, 2]}), (3, {"dilations": [2, 2], "pads": [0] * 4})],
)
def test_vertically_adjacent_windows(
    stacked: int, side: int, how: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What several windows read is read once; the last ones are computed twice where rows are no
    multiple."""
    monkeypatch.setattr(window_tiles, "STACKED_TILES", ((128, 16, stacked, 1),))
    monkeypatch.setattr(window_tiles, "MAX_ROW_RATIO", 9)
    m = windows(side, **how)
    given = feeds(m)
    exe = superopt.compile(m, target="cuda")
    near(exe.run(given), reference(m, given), "fp32")
    (part,) = exe.variant({}).kernel_steps
    chosen = [o for o in part.program.options.values() if o.algorithm == "window_tiles"]
    assert stacked in [dict(o.knobs).get("stacked_rows") for o in chosen]
    texts = [triton_text(k).source for k in part.program.kernels.values()]
    assert sum("_1 = tl.full((" in x for x in texts) == 1  # another register


@pytest.mark.parametrize("shape", [(3, 37, 20), (2, 3, 5, 33), (70, 3), (9, 16, 100)])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_several_short_rows_in_a_program(
    shape: tuple[int, ...], precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A norm and a softmax of each row, of several rows at a time."""
    monkeypatch.setattr(row_programs, "MULTIPROCESSORS", 2)
    n = shape[-1]
    nodes = [node("LayerNormalization", "x", "s", "b", "a"), node("Softmax", "a", "y")]
    m = model(nodes, {"x": (F, [*shape])}, ["y"], {"s": drawn(n), "b": drawn(n)})
    given = feeds(m)
    exe = superopt.compile(m, target="cuda", precision=precision)
    near(exe.run(given), reference(m, given), precision)
    (part,) = exe.variant({}).kernel_steps
    (option,) = [o for o in part.program.options.values() if o.algorithm == "row_wise"]
    assert option["rows"] > 1
    assert shape[-2] % option["rows"] or shape[-2] == 16


def test_strided_channels_are_one_axis() -> None:
    """Of sums over a picture, places are one axis: a vector of many, not one of a row each."""
    nodes = [node("Conv", "x", "w", "a"), node("GlobalAveragePool", "a", "y")]
    m = model(nodes, {"x": (F, [1, 4, 17, 21])}, ["y"], {"w": drawn(24, 4, 1, 1)})
    (part,) = superopt.compile(m, target="cuda").variant({}).kernel_steps
    (option,) = [o for o in part.program.options.values() if o.algorithm == "block_reduction"]
    assert option["k_block"] == 7 * 17
