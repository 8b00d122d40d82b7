"""Channels: groups of any width, sums over the channels of a picture, heads side by side."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

import superopt
from superopt.kernels.algorithms.cpu.small_n_gemm import match_small_n_gemm
from superopt.kernels.algorithms.space import choose
from superopt.kernels.loops.layout import Layout
from superopt.kernels.loops.schedule import Split
from superopt.te.analysis.affine import affine
from superopt.te.analysis.walk import loads, reductions
from tests.support.compilation.forms import CONV, Shapes, build, feeds_of, node, program_of, weights
from tests.support.compilation.models import near, reference
from tests.support.kernels.build import plan_model

FORMS: dict[str, tuple[list, Shapes, Mapping[str, np.ndarray]]] = {
    "groups of twelve channels": (
        [node("Conv", ["x", "w", "b"], ["a"], group=4, **CONV), node("Relu", ["a"], ["y"])],
        {"x": (2, 48, 9, 7)}, weights(w=(48, 12, 3, 3), b=(48,)),
    ),
    "groups of twenty channels, added to": (
        [node("Conv", ["x", "w"], ["a"], group=3, strides=[2, 2], **CONV),
         node("Conv", ["x", "v"], ["b"], strides=[2, 2]), node("Add", ["a", "b"], ["y"])],
        {"x": (1, 60, 9, 7)}, weights(w=(60, 20, 3, 3), v=(60, 60, 1, 1)),
    ),
    "groups of six channels of ten, as a part of a concatenation": (
        [node("Conv", ["x", "w"], ["a"], group=5, **CONV), node("Conv", ["x", "v"], ["b"], **CONV),
         node("Concat", ["a", "b"], ["y"], axis=1)],
        {"x": (1, 50, 8, 9)}, weights(w=(30, 10, 3, 3), v=(7, 50, 3, 3)),
    ),
    "groups of columns": (
        [node("Conv", ["x", "w"], ["y"], group=2, dilations=[2], pads=[2, 1])],
        {"x": (3, 36, 17)}, weights(w=(36, 18, 3)),
    ),
    "groups of 24 channels": (
        [node("Conv", ["x", "w"], ["a"], group=2, **CONV), node("Sigmoid", ["a"], ["y"])],
        {"x": (1, 48, 9, 9)}, weights(w=(48, 24, 3, 3)),
    ),
    "groups of eight channels": (
        [node("Conv", ["x", "w"], ["y"], group=5, strides=[2, 2], **CONV)],
        {"x": (1, 40, 9, 9)}, weights(w=(40, 8, 3, 3)),
    ),
    "a norm over the channels of a picture": (
        [node("Conv", ["x", "w"], ["a"], **CONV),
         node("Transpose", ["a"], ["b"], perm=[0, 2, 3, 1]),
         node("LayerNormalization", ["b", "s", "t"], ["c"]), node("MatMul", ["c", "v"], ["y"])],
        {"x": (1, 20, 7, 9)}, weights(w=(40, 20, 3, 3), s=(40,), t=(40,), v=(40, 24)),
    ),
    "a norm over channels, and windows of it": (
        [node("Conv", ["x", "w"], ["a"], **CONV),
         node("Transpose", ["a"], ["b"], perm=[0, 2, 3, 1]),
         node("LayerNormalization", ["b", "s", "t"], ["c"]),
         node("Transpose", ["c"], ["d"], perm=[0, 3, 1, 2]),
         node("Conv", ["d", "v"], ["y"], strides=[2, 2])],
        {"x": (1, 20, 7, 9)}, weights(w=(37, 20, 3, 3), s=(37,), t=(37,), v=(24, 37, 2, 2)),
    ),
    "heads side by side in rows": (
        [node("Reshape", ["x", "n"], ["a"]), node("Transpose", ["a"], ["t"], perm=[0, 2, 1, 3]),
         node("Mul", ["t", "c"], ["q"]), node("Reshape", ["z", "n"], ["b"]),
         node("Transpose", ["b"], ["k"], perm=[0, 2, 3, 1]), node("MatMul", ["q", "k"], ["y"])],
        {"x": (2, 19, 24), "z": (2, 23, 24)},
        {"n": np.array([2, -1, 3, 8]), "c": np.array(0.3, np.float32)},
    ),
    "a row times a matrix that is given": (
        [node("MatMul", ["x", "z"], ["y"])], {"x": (1, 72), "z": (72, 2100)}, {},
    ),
    "an odd row times a matrix that is given": (
        [node("MatMul", ["x", "z"], ["y"])], {"x": (1, 67), "z": (67, 300)}, {},
    ),
    "a row times each row of a matrix": (
        [node("Transpose", ["z"], ["t"], perm=[0, 2, 1]), node("MatMul", ["x", "t"], ["y"])],
        {"x": (3, 1, 40), "z": (3, 77, 40)}, {},
    ),
    "three channels of many": (
        [node("Conv", ["x", "w"], ["a"], **CONV), node("Conv", ["a", "v", "b"], ["c"], **CONV),
         node("Tanh", ["c"], ["y"])],
        {"x": (2, 8, 9, 13)}, weights(w=(48, 8, 3, 3), v=(3, 48, 3, 3), b=(3,)),
    ),
    "one channel of many, as a part of a concatenation": (
        [node("Conv", ["x", "w"], ["a"], **CONV), node("Conv", ["a", "v"], ["b"], **CONV),
         node("Concat", ["b", "a"], ["c"], axis=1), node("Conv", ["c", "u"], ["y"], **CONV)],
        {"x": (1, 8, 9, 7)}, weights(w=(16, 8, 3, 3), v=(1, 16, 3, 3), u=(4, 17, 3, 3)),
    ),
    "two channels of many, along one dimension": (
        [node("Conv", ["x", "w"], ["a"], pads=[1, 1]),
         node("Conv", ["a", "v"], ["y"], strides=[2], pads=[2, 2])],
        {"x": (1, 8, 29)}, weights(w=(32, 8, 3), v=(2, 32, 5)),
    ),
    "two channels of many, in three dimensions": (
        [node("Conv", ["x", "w"], ["a"]), node("Conv", ["a", "v"], ["y"], pads=[1] * 6)],
        {"x": (1, 8, 4, 5, 6)}, weights(w=(16, 8, 1, 1, 1), v=(2, 16, 3, 3, 3)),
    ),
    "phases of three channels": (
        [node("Conv", ["x", "w"], ["a"], **CONV),
         node("ConvTranspose", ["a", "v", "b"], ["y"], strides=[2, 2], pads=[1] * 4)],
        {"x": (1, 8, 7, 6)}, weights(w=(64, 8, 3, 3), v=(64, 3, 4, 4), b=(3,)),
    ),
    "phases of a stride longer than the kernel": (
        [node("ConvTranspose", ["x", "v", "b"], ["a"], strides=[3, 4]), node("Tanh", ["a"], ["y"])],
        {"x": (1, 8, 7, 6)}, weights(v=(8, 20, 2, 3), b=(20,)),
    ),
    "phases of a kernel of one element": (
        [node("ConvTranspose", ["x", "v", "b"], ["a"], strides=[2, 3]), node("Tanh", ["a"], ["y"])],
        {"x": (1, 8, 7, 6)}, weights(v=(8, 20, 1, 4), b=(20,)),
    ),
    "windows over rows of features": (
        [node("MatMul", ["x", "w"], ["a"]), node("Relu", ["a"], ["r"]),
         node("Reshape", ["r", "s"], ["p"]), node("Conv", ["p", "v"], ["y"], **CONV)],
        {"x": (1, 24)}, weights(w=(24, 16 * 35), v=(32, 16, 3, 3)) | {"s": np.array([1, 16, 5, 7])},
    ),
    "windows over turned rows of features": (
        [node("MatMul", ["x", "w"], ["a"]), node("Transpose", ["a"], ["t"], perm=[0, 2, 1]),
         node("Reshape", ["t", "s"], ["p"]), node("Conv", ["p", "v"], ["y"], **CONV)],
        {"x": (1, 35, 24)}, weights(w=(24, 16), v=(32, 16, 3, 3)) | {"s": np.array([1, 16, 5, 7])},
    ),
    "phases of one channel, of rows": (
        [node("Conv", ["x", "w"], ["a"]), node("Reshape", ["a", "s"], ["r"]),
         node("Mul", ["r", "u"], ["m"]), node("Reshape", ["m", "q"], ["p"]),
         node("ConvTranspose", ["p", "v"], ["y"], strides=[4])],
        {"x": (1, 8, 19), "u": (1, 1, 16, 19)},
        weights(w=(32, 8, 1), v=(16, 1, 8))
        | {"s": np.array([1, 2, 16, 19]), "q": np.array([2, 16, 19])},
    ),
    "few columns of long rows": (
        [node("MatMul", ["x", "w"], ["a"]), node("Add", ["a", "b"], ["y"])],
        {"x": (37, 320)}, weights(w=(320, 2), b=(2,)),
    ),
    "one channel of 33": (
        [node("Conv", ["x", "w"], ["a"], **CONV), node("Conv", ["a", "v", "b"], ["c"], **CONV),
         node("Sigmoid", ["c"], ["y"])],
        {"x": (2, 8, 9, 13)}, weights(w=(33, 8, 3, 3), v=(1, 33, 3, 3), b=(1,)),
    ),
    "one column of long rows": (
        [node("MatMul", ["x", "w"], ["a"]), node("Add", ["a", "b"], ["y"])],
        {"x": (37, 300)}, weights(w=(300, 1), b=(1,)),
    ),
    "eight channels along rows, then three": (
        [node("Conv", ["x", "w", "b"], ["a"], pads=[1, 3, 1, 3]), node("Relu", ["a"], ["r"]),
         node("Conv", ["r", "v"], ["c"], **CONV), node("Sigmoid", ["c"], ["y"])],
        {"x": (2, 8, 9, 41)}, weights(w=(8, 8, 3, 7), b=(8,), v=(3, 8, 3, 3)),
    ),
    "channels along rows, added to and concatenated": (
        [node("Conv", ["x", "w"], ["a"], **CONV), node("Add", ["a", "x"], ["s"]),
         node("Conv", ["s", "v"], ["b"], **CONV), node("Concat", ["s", "b"], ["c"], axis=1),
         node("Conv", ["c", "u"], ["y"], strides=[2, 2], **CONV)],
        {"x": (1, 5, 9, 35)}, weights(w=(5, 5, 3, 3), v=(4, 5, 3, 3), u=(24, 9, 3, 3)),
    ),
    "channels along one dimension": (
        [node("Conv", ["x", "w"], ["a"], pads=[2, 2], dilations=[2]), node("Elu", ["a"], ["e"]),
         node("Conv", ["e", "v"], ["y"], pads=[1, 1])],
        {"x": (3, 4, 70)}, weights(w=(12, 4, 3), v=(2, 12, 3)),
    ),
    "channels along rows in three dimensions": (
        [node("Conv", ["x", "w"], ["a"], pads=[1] * 6), node("Conv", ["a", "v"], ["y"])],
        {"x": (1, 3, 4, 5, 33)}, weights(w=(6, 3, 3, 3, 3), v=(20, 6, 1, 1, 1)),
    ),
    "channels along rows, in groups of one": (
        [node("Conv", ["x", "w"], ["a"], **CONV), node("Conv", ["a", "v"], ["d"], group=6, **CONV),
         node("MaxPool", ["d"], ["y"], kernel_shape=[2, 2], strides=[2, 2])],
        {"x": (1, 3, 10, 40)}, weights(w=(6, 3, 3, 3), v=(6, 1, 3, 3)),
    ),
    "channels along short rows": (
        [node("Conv", ["x", "w"], ["a"], **CONV), node("Conv", ["a", "v"], ["y"], **CONV)],
        {"x": (1, 8, 9, 13)}, weights(w=(8, 8, 3, 3), v=(8, 8, 3, 3)),
    ),
    "windows over columns that become rows": (
        [node("Sigmoid", ["x"], ["a"]), node("Unsqueeze", ["a", "n"], ["b"]),
         node("Reshape", ["b", "q"], ["c"]),
         node("Conv", ["c", "v"], ["d"], strides=[1, 3], **CONV),
         node("ReduceSum", ["a"], ["s"], keepdims=0),
         node("Add", ["d", "s"], ["y"])],
        {"x": (2, 9, 40)},
        weights(v=(32, 1, 5, 5)) | {"n": np.array([3]), "q": np.array([2, 1, 9, 40])},
    ),
    "windows of a signal, as columns": (
        [node("Conv", ["x", "w"], ["a"], strides=[1, 3]), node("Transpose", ["a"], ["t"],
         perm=[0, 3, 1, 2]), node("Neg", ["t"], ["y"])],
        {"x": (2, 1, 1, 90)}, weights(w=(36, 1, 1, 16)),
    ),
    "a convolution that gives rows": (
        [node("Conv", ["x", "w"], ["a"], pads=[1, 1]), node("Conv", ["a", "v", "b"], ["c"]),
         node("Transpose", ["c"], ["t"], perm=[0, 2, 1]), node("Add", ["t", "z"], ["y"])],
        {"x": (1, 16, 48), "z": (1, 48, 80)}, weights(w=(64, 16, 3), v=(80, 64, 1), b=(80,)),
    ),
    "depthwise alone": (
        [node("Conv", ["x", "w"], ["y"], group=32, **CONV)],
        {"x": (1, 32, 9, 9)}, weights(w=(32, 1, 3, 3)),
    ),
    "windows that overlap": (
        [node("MaxPool", ["x"], ["y"], kernel_shape=[3, 5], pads=[1, 2, 1, 2])],
        {"x": (1, 20, 9, 11)}, {},
    ),
}  # fmt: skip


@pytest.mark.one_in(14)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", FORMS)
def test_it_is_computed(name: str, threads: int) -> None:
    nodes, shapes, known = FORMS[name]
    m = build(nodes, shapes, known)
    feeds = feeds_of(shapes)
    near(superopt.compile(m, threads=threads).run(feeds), reference(m, feeds))


@pytest.mark.parametrize("level", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize(
    ("name", "algorithm"),
    [("groups of twelve channels", "grouped_gemm"),
     ("groups of twenty channels, added to", "grouped_gemm"),
     ("groups of six channels of ten, as a part of a concatenation", "grouped_gemm"),
     ("groups of columns", "grouped_gemm"), ("a norm over the channels of a picture", "row_wise"),
     ("a norm over channels, and windows of it", "horizontal_reduction"),
     ("a row times a matrix that is given", "gemv"),
     ("a row times each row of a matrix", "horizontal_reduction"),
     ("three channels of many", "small_n_gemm"),
     ("one channel of many, as a part of a concatenation", "small_n_gemm"),
     ("two channels of many, along one dimension", "small_n_gemm"),
     ("two channels of many, in three dimensions", "small_n_gemm"),
     ("phases of three channels", "small_n_gemm"),
     ("few columns of long rows", "small_n_gemm"), ("one channel of 33", "small_n_gemm"),
     ("one column of long rows", "small_n_gemm"),
     ("eight channels along rows, then three", "planar_convolution"),
     ("channels along rows, added to and concatenated", "planar_convolution"),
     ("channels along one dimension", "planar_convolution"),
     ("channels along rows in three dimensions", "planar_convolution"),
     ("windows of a signal, as columns", "gemm")],
)  # fmt: skip
def test_it_has_a_kernel_of_its_own(name: str, algorithm: str, level: str) -> None:
    nodes, shapes, known = FORMS[name]
    found = plan_model(build(nodes, shapes, known), level)
    assert algorithm in {o.algorithm for o in found.options.values()}


@pytest.mark.parametrize("lanes", [8, 16])
def test_vectors_of_what_is_summed_are_parts_of_blocks(lanes: int) -> None:
    """Sixteen channels lie next to each other: where they are two vectors, each is read as one."""
    nodes, shapes, known = FORMS["three channels of many"]
    found = plan_model(build(nodes, shapes, known), "x86-64-v4")
    (key,) = (k for k, o in found.options.items() if o.algorithm == "small_n_gemm")
    p = found.problems[key]
    narrow = match_small_n_gemm(p.tensor, p.constants, p.layouts, lanes)
    assert narrow is not None
    (x,) = (x for x in loads(narrow.partial_sums.body) if x.tensor in p.layouts)
    layout = p.layouts[x.tensor]
    assert isinstance(layout, Layout)
    assert layout.parts[-1].block == 16
    assert affine(layout.buffer_index(x.index)[-1]) is not None
    assert narrow.partial_sums.shape[-1] == lanes


def test_windows_over_feature_rows_read_a_bordered_image() -> None:
    for name in ("windows over rows of features", "windows over turned rows of features"):
        nodes, shapes, known = FORMS[name]
        found = program_of(build(nodes, shapes, known))
        (p,) = (
            p
            for p in found.problems.values()
            if any(len(r.axes) == 3 for r in reductions(p.tensor.body))
        )
        (read,) = (p.layouts[x.tensor] for x in loads(p.tensor.body) if x.tensor in p.layouts)
        assert str(read) == "i0 i1//16 i2+1 i3+1 i1%16", name


def test_a_vector_times_a_matrix_is_no_product_of_matrices() -> None:
    """Each of its results is a sum; phases of one channel are such sums along what lies in rows."""
    nodes, shapes, known = FORMS["phases of one channel, of rows"]
    found = program_of(build(nodes, shapes, known))
    phases = [k for k in found.call_problems if found.problems[k].tensor.shape == (2, 1, 20)]
    assert len(phases) == 4
    assert {found.options[k].algorithm for k in phases} <= {"vertical_reduction", "small_n_gemm"}


@pytest.mark.parametrize("count", [17, 20, 33])
def test_what_fills_vectors_is_not_few(count: int) -> None:
    m = build([node("MatMul", ["x", "w"], ["y"])], {"x": (37, 1024)}, weights(w=(1024, count)))
    assert "small_n_gemm" not in {o.algorithm for o in program_of(m).options.values()}


def test_non_image_tensors_are_row_major() -> None:
    """The channels of what a convolution gives are its last dimension; those of what is convolved
    in groups of one lie in blocks."""
    nodes, shapes, known = FORMS["a convolution that gives rows"]
    found = program_of(build(nodes, shapes, known))
    last = found.problems[found.call_problems[-1]]
    assert last.tensor.shape == (1, 48, 80)
    assert last.tensor not in last.layouts
    nodes, shapes, known = FORMS["depthwise alone"]
    found = program_of(build(nodes, shapes, known))
    (own,) = (p for p in found.problems.values() if reductions(p.tensor.body))
    assert str(own.layouts[own.tensor]) == "i0 i1//16 i2 i3 i1%16"


def test_heads_side_by_side_are_no_windows() -> None:
    """Vectors go along what is looked for, and not along who looks for it."""
    nodes, shapes, known = FORMS["heads side by side in rows"]
    found = program_of(build(nodes, shapes, known))
    products = [p.tensor.shape for p in found.problems.values() if reductions(p.tensor.body)]
    assert products == [(2, 3, 19, 23)]


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("eight channels along rows, then three", ["i0 i1 i2+1 i3+1", "i0 i1 i2+1 i3+3"]),
     ("channels along rows, in groups of one", ["i0 i1 i2 i3", "i0 i1 i2+1 i3+1"]),
     ("channels along short rows", ["i0 i2+1 i3+1 i1"])],
)  # fmt: skip
def test_images_of_few_channels_are_planar_if_their_rows_fill_vectors(
    name: str, wanted: list[str]
) -> None:
    nodes, shapes, known = FORMS[name]
    found = program_of(build(nodes, shapes, known))
    some = (p for p in found.problems.values() if len(reductions(p.tensor.body)) == 1)
    read = {str(p.layouts[x.tensor]) for p in some for x in loads(p.tensor.body)
            if x.tensor in p.layouts}  # fmt: skip
    assert sorted(read) == wanted


def test_windows_over_columns_that_become_rows_read_a_border() -> None:
    nodes, shapes, known = FORMS["windows over columns that become rows"]
    found = program_of(build(nodes, shapes, known))
    (p,) = (p for p in found.problems.values() if p.tensor.rank == 4 and reductions(p.tensor.body))
    (read,) = (p.layouts[x.tensor] for x in loads(p.tensor.body) if x.tensor in p.layouts)
    assert str(read) == "i0 i1 i2+1 i3+1"


def test_masked_lanes_read_no_other_pixel() -> None:
    """A NaN reaches the windows that contain it, and no others, whose last vector ends with it."""
    nodes, _, known = FORMS["one channel of 33"]
    m = build(nodes[1:], {"a": (1, 33, 9, 13)}, known)
    feeds = feeds_of({"a": (1, 33, 9, 13)})
    feeds["a"][0, 0, 4, 6] = np.nan
    (y,) = superopt.compile(m).run(feeds).values()
    inside = np.zeros((9, 13), bool)
    inside[3:6, 5:8] = True
    assert np.array_equal(np.isnan(y[0, 0]), inside)


@pytest.mark.parametrize(("stride", "unrolled"), [(1, False), (3, False), (4, True)])
def test_terms_of_several_rows_are_not_unrolled(stride: int, unrolled: bool) -> None:
    """A Xeon has four terms of a sum in a step of its loop."""
    m = build([node("Conv", ["x", "w"], ["y"], strides=[1, stride])], {"x": (1, 1, 1, 400)},
              weights(w=(32, 1, 1, 8)))  # fmt: skip
    found = plan_model(m, "x86-64-v4", "sapphirerapids")
    (p,) = (p for p in found.problems.values() if reductions(p.tensor.body))
    (how,) = choose(p).schedules.values()
    assert (Split("k2", 4) in how) == unrolled


@pytest.mark.one_in(2)
@pytest.mark.parametrize("first", [41, 8])
@pytest.mark.parametrize(
    "name",
    ["eight channels along rows, then three", "channels along one dimension", "one channel of 33"],
)
def test_results_are_equal_at_all_widths(name: str, first: int) -> None:
    """first: the width that the program is planned for."""
    nodes, shapes, known = FORMS[name]
    m = build(nodes, {k: (*s[:-1], "w") for k, s in shapes.items()}, known)
    exe = superopt.compile(m, specialize="never")
    for width in (first, 64, 20, 17, 13, 41):
        feeds = feeds_of({k: (*s[:-1], width) for k, s in shapes.items()})
        near(exe.run(feeds), reference(m, feeds))
