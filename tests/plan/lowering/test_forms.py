"""Forms that the plan or a kernel treats in a way of their own: computed as onnxruntime does, at
sizes that divide nothing; and that they are treated so."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

import superopt
from tests.support.breadth import examples
from tests.support.compilation.forms import CONV, Shapes, build, feeds_of, node, program_of, weights
from tests.support.compilation.models import F, I, model, near, reference
from tests.support.kernels.build import plan_model


def attention(*, mask: bool) -> list:
    scores = [node("MatMul", ["q", "t"], ["s"]), node("Mul", ["s", "c"], ["s1"])]
    if mask:
        scores.append(node("Add", ["s1", "m"], ["s2"]))
    return [
        node("Transpose", ["k"], ["t"], perm=[0, 1, 3, 2]),
        *scores,
        node("Softmax", ["s2" if mask else "s1"], ["p"], axis=-1),
        node("MatMul", ["p", "v"], ["y"]),
    ]


HEADS = {"q": (1, 3, 7, 12), "k": (1, 3, 9, 12), "v": (1, 3, 9, 12)}
NEAREST = {
    "mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor",
}  # fmt: skip
SCALE = {"s": np.array([1, 1, 2, 2], np.float32)}
FORMS: dict[str, tuple[list, Shapes, Mapping[str, np.ndarray]]] = {
    "softmax": ([node("Softmax", ["x"], ["y"])], {"x": (3, 5, 37)}, {}),
    "softmax of long rows": ([node("Softmax", ["x"], ["y"])], {"x": (2, 1031)}, {}),
    "log-softmax": ([node("LogSoftmax", ["x"], ["y"])], {"x": (3, 5, 300)}, {}),
    "softmax of columns": ([node("Softmax", ["x"], ["y"], axis=1)], {"x": (2, 21, 5, 7)}, {}),
    "layer norm": (
        [node("LayerNormalization", ["x", "s", "b"], ["y"])],
        {"x": (2, 7, 50)}, weights(s=(50,), b=(50,)),
    ),
    "layer norm of two axes": (
        [node("LayerNormalization", ["x", "s", "b"], ["y"], axis=1)],
        {"x": (3, 7, 5)}, weights(s=(7, 5), b=(7, 5)),
    ),
    "instance norm": (
        [node("InstanceNormalization", ["x", "s", "b"], ["y"])],
        {"x": (2, 3, 7, 9)}, weights(s=(3,), b=(3,)),
    ),
    "a row's length": (
        [node("ReduceL2", ["x"], ["l"], axes=[-1]), node("Div", ["x", "l"], ["y"])],
        {"x": (4, 33)}, {},
    ),
    "attention": (attention(mask=False), HEADS, {"c": np.array(0.3, np.float32)}),
    "attention with a mask": (
        attention(mask=True), {**HEADS, "m": (1, 1, 7, 9)}, {"c": np.array(0.3, np.float32)},
    ),
    "turned": ([node("Transpose", ["x"], ["y"], perm=[1, 0])], {"x": (37, 50)}, {}),
    "turned in the middle": (
        [node("Transpose", ["x"], ["y"], perm=[0, 2, 1, 3])], {"x": (2, 5, 19, 23)}, {},
    ),
    "turned to the front": (
        [node("Transpose", ["x"], ["y"], perm=[0, 3, 1, 2])], {"x": (2, 5, 19, 23)}, {},
    ),
    "turned, and more": (
        [node("Transpose", ["x"], ["t"], perm=[1, 0]), node("Add", ["t", "z"], ["a"]),
         node("Sigmoid", ["a"], ["y"])],
        {"x": (33, 18), "z": (18, 33)}, {},
    ),
    "a product that is turned": (
        [node("MatMul", ["x", "w"], ["a"]), node("Transpose", ["a"], ["t"], perm=[0, 2, 1]),
         node("Add", ["t", "z"], ["y"])],
        {"x": (1, 21, 18), "z": (1, 33, 21)}, weights(w=(18, 33)),
    ),
    "products of inputs": (
        [node("Gemm", ["x", "z"], ["y"], transB=1)], {"x": (9, 20), "z": (33, 20)}, {},
    ),
    "einsum": (
        [node("Einsum", ["q", "k"], ["y"], equation="bhqd,bhkd->bhqk")],
        {"q": (1, 3, 7, 12), "k": (1, 3, 9, 12)}, {},
    ),
    "a picture that is given and wanted": (
        [node("Conv", ["x", "w"], ["y"], **CONV)], {"x": (2, 16, 9, 11)}, weights(w=(32, 16, 3, 3)),
    ),
    "few channels": (
        [node("Conv", ["x", "w"], ["y"], **CONV)], {"x": (1, 5, 9, 11)}, weights(w=(3, 5, 3, 3)),
    ),
    "groups in blocks": (
        [node("Conv", ["x", "w"], ["y"], group=2, **CONV)],
        {"x": (1, 32, 9, 9)}, weights(w=(64, 16, 3, 3)),
    ),
    "small groups": (
        [node("Conv", ["x", "w"], ["y"], group=8, **CONV)],
        {"x": (1, 32, 9, 9)}, weights(w=(32, 4, 3, 3)),
    ),
    "groups that divide nothing": (
        [node("Conv", ["x", "w"], ["y"], group=3, **CONV)],
        {"x": (1, 15, 7, 7)}, weights(w=(21, 5, 3, 3)),
    ),
    "groups of kernels that are given": (
        [node("Conv", ["x", "w"], ["y"], group=4, **CONV)],
        {"x": (2, 16, 9, 8), "w": (64, 4, 3, 3)}, {},
    ),
    "a border around constants": (
        [node("Where", ["c", "k", "x"], ["a"]), node("Conv", ["a", "w"], ["y"], group=4, **CONV)],
        {"x": (1, 4, 11, 9)},
        weights(k=(1, 4, 11, 9), w=(4, 1, 3, 3)) | {"c": np.eye(11, 9)[None, None] > 0},
    ),
    "sums of rows that numbers choose": (
        [node("Cast", ["x"], ["i"], to=I), node("Gather", ["w", "i"], ["a"]),
         node("ReduceSum", ["a", "s"], ["y"], keepdims=0)],
        {"x": (8, 3)}, weights(w=(50, 16)) | {"s": np.array([1])},
    ),
    "sums of rows in another order": (
        [node("ReverseSequence", ["x", "n"], ["a"]),
         node("ReduceSum", ["a", "s"], ["y"], keepdims=0)],
        {"x": (7, 1, 31)}, {"n": np.array([4]), "s": np.array([1])},
    ),
    "products of no columns": (
        [node("Gemm", ["x", "z"], ["y"], transA=1)], {"x": (5, 3), "z": (5, 0)}, {},
    ),
    "a large product, and a norm of what it is added to": (
        [node("MatMul", ["x", "w"], ["a"]), node("Add", ["a", "b"], ["c"]),
         node("Tanh", ["c"], ["d"]), node("MatMul", ["d", "v"], ["e"]),
         node("Add", ["e", "x"], ["f"]), node("LayerNormalization", ["f", "s", "b2"], ["y"])],
        {"x": (1, 131, 256)},
        weights(w=(256, 512), b=(512,), v=(512, 256), s=(256,), b2=(256,)),
    ),
    "a large product of pixels, as a part of a concatenation": (
        [node("Conv", ["x", "w"], ["a"]), node("Relu", ["a"], ["b"]),
         node("Conv", ["b", "v"], ["c"], **CONV), node("Concat", ["b", "c"], ["y"], axis=1)],
        {"x": (1, 512, 13, 11)}, weights(w=(256, 512, 1, 1), v=(32, 256, 3, 3)),
    ),
    "channels come last, before windows": (
        [node("LayerNormalization", ["x", "s", "b"], ["a"]),
         node("Transpose", ["a"], ["t"], perm=[0, 3, 1, 2]),
         node("Conv", ["t", "w"], ["y"], group=32, pads=[3] * 4)],
        {"x": (1, 9, 11, 32)}, weights(s=(32,), b=(32,), w=(32, 1, 7, 7)),
    ),
    "channels in another order": (
        [node("Conv", ["x", "u"], ["a"]), node("Reshape", ["a", "s1"], ["b"]),
         node("Transpose", ["b"], ["c"], perm=[0, 2, 1, 3, 4]), node("Reshape", ["c", "s2"], ["d"]),
         node("Conv", ["d", "w"], ["y"], group=32, **CONV)],
        {"x": (1, 32, 7, 7)},
        weights(u=(32, 32, 1, 1), w=(32, 1, 3, 3))
        | {"s1": np.array([1, 2, 16, 7, 7]), "s2": np.array([1, 32, 7, 7])},
    ),
    "nearest neighbours before windows": (
        [node("Conv", ["x", "u"], ["a"]), node("Resize", ["a", "", "s"], ["b"], **NEAREST),
         node("Conv", ["b", "w"], ["y"], **CONV)],
        {"x": (1, 16, 5, 7)}, weights(u=(16, 16, 1, 1), w=(16, 16, 3, 3)) | SCALE,
    ),
    "depth to space between windows": (
        [node("Conv", ["x", "u"], ["a"], **CONV), node("DepthToSpace", ["a"], ["b"], blocksize=2),
         node("Conv", ["b", "w"], ["y"], **CONV)],
        {"x": (1, 16, 5, 7)}, weights(u=(64, 16, 3, 3), w=(16, 16, 3, 3)),
    ),
    "every second element": (
        [node("Slice", ["x", "b", "e", "a", "t"], ["y"])], {"x": (3, 50)},
        {"b": np.array([1]), "e": np.array([50]), "a": np.array([1]), "t": np.array([2])},
    ),
    "backwards": (
        [node("Slice", ["x", "b", "e", "a", "t"], ["y"])], {"x": (3, 50)},
        {"b": np.array([-1]), "e": np.array([-99]), "a": np.array([1]), "t": np.array([-1])},
    ),
    "a sum of all": ([node("ReduceSum", ["x"], ["y"], keepdims=0)], {"x": (7, 1000)}, {}),
    "the largest of planes": (
        [node("ReduceMax", ["x"], ["y"], axes=[2, 3])], {"x": (2, 5, 9, 11)}, {},
    ),
    "a mean of planes": ([node("GlobalAveragePool", ["x"], ["y"])], {"x": (2, 5, 9, 11)}, {}),
    "windows of a plane": (
        [node("MaxPool", ["x"], ["y"], kernel_shape=[5, 5], pads=[2] * 4)],
        {"x": (1, 20, 9, 9)}, {},
    ),
}  # fmt: skip


@pytest.mark.one_in(14)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", FORMS)
def test_it_is_computed(name: str, threads: int) -> None:
    nodes, shapes, known = FORMS[name]
    m = build(nodes, shapes, known)
    feeds = feeds_of(shapes)
    exe = superopt.compile(m, threads=threads)
    near(exe.run(feeds), reference(m, feeds))
    assert not exe.fallback_nodes({})


def test_numbers_that_are_none_are_the_largest() -> None:
    """In whatever lane, and wherever in the order of adding."""
    m = build([node("ReduceMax", ["x"], ["y"], axes=[1])], {"x": (40, 300)})
    x = np.random.default_rng(0).standard_normal((40, 300)).astype(np.float32)
    for row in range(40):
        x[row, row * 7] = np.nan
    assert np.isnan(superopt.compile(m).run({"x": x})["y"]).all()


@pytest.mark.parametrize("name", ["softmax", "log-softmax", "layer norm", "a row's length"])
def test_rows_are_one_kernel(name: str) -> None:
    nodes, shapes, known = FORMS[name]
    found = program_of(build(nodes, shapes, known))
    assert [o.algorithm for o in found.options.values()] == ["row_wise"]


def test_channels_last_images_are_copied_first() -> None:
    nodes, shapes, known = FORMS["channels come last, before windows"]
    found = program_of(build(nodes, shapes, known))
    layouts = [str(x) for p in found.problems.values() for x in p.layouts.values()]
    assert "i0 i1//16 i2+3 i3+3 i1%16" in layouts


@pytest.mark.parametrize("name", [n for n in FORMS if n.startswith("a large product")])
def test_large_products_are_computed_by_parts(name: str) -> None:
    nodes, shapes, known = FORMS[name]
    found = plan_model(build(nodes, shapes, known), "x86-64-v4", "znver5")
    assert "strassen" in {o.algorithm for o in found.options.values()}


@pytest.mark.parametrize("name", ["turned", "turned to the front"])
def test_tiles_are_transposed(name: str) -> None:
    nodes, shapes, known = FORMS[name]
    found = plan_model(build(nodes, shapes, known), "x86-64-v4")
    assert "transpose" in {o.algorithm for o in found.options.values()}


@pytest.mark.one_in(0)
@examples(40)
@given(st.data())
def test_transposed_convolutions(data: st.DataObject) -> None:
    def some(low: int, high: int, count: int = 2) -> list[int]:
        return data.draw(st.lists(st.integers(low, high), min_size=count, max_size=count))

    kernel, strides, dilations = some(1, 4), some(1, 3), some(1, 2)
    group = data.draw(st.sampled_from([1, 1, 2]))
    inner, outer = group * data.draw(st.sampled_from([1, 3, 16])), data.draw(st.integers(1, 20))
    pads = [min(p, (k - 1) * d) for p, k, d in zip(some(0, 2, 4), kernel * 2, dilations * 2)]  # noqa: B905
    more = [
        data.draw(st.integers(0, max(s, d) - 1)) for s, d in zip(strides, dilations, strict=True)
    ]
    shape = (1, inner, *some(2, 6))
    attrs = {
        "strides": strides, "dilations": dilations, "pads": pads, "output_padding": more,
        "group": group,
    }  # fmt: skip
    m = build(
        [node("ConvTranspose", ["x", "w", "b"], ["a"], **attrs), node("Relu", ["a"], ["y"])],
        {"x": shape}, weights(w=(inner, outer, *kernel), b=(outer * group,)),
    )  # fmt: skip
    feeds = feeds_of({"x": shape})
    try:
        wanted = reference(m, feeds)
    except Exception:  # an empty result, which onnxruntime refuses
        return
    near(superopt.compile(m).run(feeds), wanted)


@examples(40)
@given(st.permutations(range(4)), st.lists(st.integers(1, 37), min_size=4, max_size=4))
def test_transpositions(perm: list[int], shape: list[int]) -> None:
    m = build([node("Transpose", ["x"], ["y"], perm=perm)], {"x": shape})
    x = feeds_of({"x": shape})["x"]
    np.testing.assert_array_equal(superopt.compile(m).run({"x": x})["y"], x.transpose(perm))


def test_computed_weights_are_transposed() -> None:
    """A convolution's weights that another node gives: copied as a kernel reads them, and not
    gone through in the order in which they lie."""
    rng = np.random.default_rng(0)
    w = rng.standard_normal((48, 32, 3, 3)).astype(np.float32)
    nodes = [
        onnx.helper.make_node("Mul", ["w", "s"], ["v"]),
        onnx.helper.make_node("Conv", ["x", "v"], ["c"], pads=[1] * 4),
        onnx.helper.make_node("Relu", ["c"], ["y"]),
    ]
    m = model(nodes, {"x": (F, [2, 32, 9, 9]), "s": (F, [1, 32, 1, 1])}, ["y"], {"w": w})
    exe = superopt.compile(m)
    (step,) = exe.variants[()]
    program = step.code.program
    ways = {
        program.call_results[n].name: str(program.options[k])
        for n, k in enumerate(program.call_problems)
    }
    assert any(how.split()[0] in ("gemm", "collapsed_gemm") for how in ways.values()), ways
    feeds = {
        "x": rng.standard_normal((2, 32, 9, 9)).astype(np.float32),
        "s": rng.standard_normal((1, 32, 1, 1)).astype(np.float32),
    }
    near(exe.run(feeds), reference(m, feeds))


def test_a_gate_is_computed_once() -> None:
    """Sigmoid ends the product that it is of; what it scales only reads it."""
    rng = np.random.default_rng(0)
    w = rng.standard_normal((64, 64, 1, 1)).astype(np.float32)
    nodes = [
        onnx.helper.make_node("GlobalAveragePool", ["x"], ["p"]),
        onnx.helper.make_node("Conv", ["p", "w"], ["c"]),
        onnx.helper.make_node("Sigmoid", ["c"], ["g"]),
        onnx.helper.make_node("Mul", ["x", "g"], ["y"]),
    ]
    m = model(nodes, {"x": (F, [1, 64, 14, 14])}, ["y"], {"w": w})
    exe = superopt.compile(m)
    (step,) = exe.variants[()]
    said = [str(t.body) for t in (p.tensor for p in step.code.program.problems.values())]
    assert [s for s in said if "sigmoid" in s and "sum" in s], said
    assert not [s for s in said if "sigmoid" in s and "sum" not in s], said
    x = {"x": rng.standard_normal((1, 64, 14, 14)).astype(np.float32)}
    near(exe.run(x), reference(m, x))


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("size", "weight", "apart"),
    [(17, (256, 24, 3, 3), 2), (57, (160, 160, 3, 3), 1), (15, (512, 512, 1, 1), 1)],
)
def test_two_threads_give_the_same_each_time(
    size: int, weight: tuple[int, ...], apart: int
) -> None:
    """Where tiles, and parts, give elements twice it is always the same ones that stay."""
    rng = np.random.default_rng(0)
    how = {"pads": [apart * (weight[2] // 2)] * 4, "dilations": [apart] * 2}
    nodes = [
        onnx.helper.make_node("Relu", ["x"], ["a"]),
        onnx.helper.make_node("Conv", ["a", "w"], ["y"], **how),
    ]
    w = rng.standard_normal(weight).astype(np.float32)
    m = model(nodes, {"x": (F, [1, weight[1], size, size])}, ["y"], {"w": w})
    exe = superopt.compile(m, threads=2)
    x = rng.standard_normal((1, weight[1], size, size)).astype(np.float32)
    first = exe(x=x)["y"].copy()
    near({"y": first}, reference(m, {"x": x}))
    for _ in range(300):
        np.testing.assert_array_equal(exe(x=x)["y"], first)


@pytest.mark.parametrize("other", [0.0, -1e9, 0.1, float("-inf")])
def test_a_number_beside_a_cast_stays_what_it_is(other: float) -> None:
    """What is chosen where a half is not is of the type that this was cast to."""
    half, truth = onnx.TensorProto.FLOAT16, onnx.TensorProto.BOOL
    nodes = [
        helper.make_node("Cast", ["x"], ["a"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Where", ["m", "a", "c"], ["y"]),
    ]
    m = model(nodes, {"x": (half, [40]), "m": (truth, [40])}, ["y"], {"c": np.float32(other)})
    x, mask = np.arange(40).astype(np.float16) / 7, np.arange(40) % 3 == 0
    (got,) = superopt.compile(m).run({"x": x, "m": mask}).values()
    np.testing.assert_array_equal(got, np.where(mask, x.astype(np.float32), np.float32(other)))
