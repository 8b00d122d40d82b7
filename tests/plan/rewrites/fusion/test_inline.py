"""What is computed within what reads it, and what stays in memory."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import superopt
from tests.support.compilation.models import F, drawn, model, near, reference

pytest.importorskip("onnxruntime")


def chosen(op: str, weights: np.ndarray, shape: list[int], **how: object) -> onnx.ModelProto:
    """A product of what is of one picture here, and of another there."""
    nodes = [
        helper.make_node("Where", ["m", "x", "z"], ["a"]),
        helper.make_node(op, ["a", "w"], ["y"], **how),
    ]
    given = {"m": (TensorProto.BOOL, shape), "x": (F, shape), "z": (F, shape)}
    return model(nodes, given, ["y"], {"w": weights})


CASES = {
    "a matrix": lambda: chosen("MatMul", drawn(48, 64), [24, 48]),
    "a convolution": lambda: chosen("Conv", drawn(16, 16, 3, 3), [1, 16, 9, 9], pads=[1] * 4),
}


@pytest.mark.parametrize("name", CASES)
def test_products_read_one_image(name: str) -> None:
    """Where they read two, no way to multiply matrices was left (0.6 of onnxruntime's speed)."""
    m = CASES[name]()
    shape = [d.dim_value for d in m.graph.input[1].type.tensor_type.shape.dim]
    rng = np.random.default_rng(0)
    given = {"m": rng.random(shape) < 0.5, "x": drawn(*shape), "z": drawn(*shape) * 2}
    exe = superopt.compile(m)
    near(exe.run(given), reference(m, given))
    (step,) = exe.variants[()]
    ways = {o.algorithm for o in step.code.program.options.values()}
    assert ways & {"gemm", "winograd", "collapsed_gemm", "strassen"}


def test_what_is_made_of_constants_runs_once() -> None:
    """Masks that are written into zeros: no node is left to onnxruntime, which is faster at it."""
    nodes = [
        helper.make_node("ConstantOfShape", ["shape"], ["zeros"]),
        helper.make_node("ScatterND", ["zeros", "at", "ones"], ["mask"]),
        helper.make_node("Add", ["x", "mask"], ["y"]),
    ]
    at = np.stack(np.meshgrid(np.arange(20), np.arange(30), indexing="ij"), -1)
    known = {"shape": np.array([40, 50]), "at": at, "ones": np.ones((20, 30), np.float32)}
    m = model(nodes, {"x": (F, [40, 50])}, ["y"], known)
    exe = superopt.compile(m)
    x = drawn(40, 50)
    near(exe(x=x), reference(m, {"x": x}))
    assert not exe.fallback_nodes({})


def read_twice(op: str, first: str, shape: list[int], w: np.ndarray) -> onnx.ModelProto:
    nodes = [helper.make_node(first, ["x", "w"], ["a"]), helper.make_node(op, ["a", "w"], ["y"])]
    return model(nodes, {"x": (F, shape)}, ["y"], {"w": w})


@pytest.mark.one_in(2)
@pytest.mark.parametrize("op", ["Add", "Mul", "Sub", "Max"])
@pytest.mark.parametrize(
    ("first", "shape", "w"),
    [("MatMul", [24, 24], drawn(24, 24)), ("Conv", [1, 3, 5, 5], drawn(3, 3, 3, 3)),
     ("MatMul", [2, 16, 16], drawn(2, 16, 16)), ("MatMul", [1, 1], drawn(1, 48))],
    ids=["a matrix", "a convolution", "several", "a row"],
)  # fmt: skip
def test_a_weight_that_is_read_beside_its_product(
    op: str, first: str, shape: list[int], w: np.ndarray
) -> None:
    """It is packed for the product, and read as it is by what follows."""
    m = read_twice(op, first, shape, w)
    exe = superopt.compile(m)
    x = drawn(*shape)
    near(exe(x=x), reference(m, {"x": x}))
    assert not exe.fallback_nodes({})


@pytest.mark.parametrize(
    ("small", "kernels"), [([256], 2), ([200, 1], 2), ([1], 2), ([200, 256], 1), ([100, 1], 0)]
)
def test_functions_of_what_is_read_often_are_kept(small: list[int], kernels: int) -> None:
    """They were computed anew for each element that reads them: four of a row of 256, behind which
    2000 rows are added, at 0.09 of onnxruntime's speed."""
    nodes = [
        helper.make_node("Sin", ["x"], ["a"]),
        helper.make_node("Exp", ["a"], ["b"]),
        helper.make_node("Add", ["b", "z"], ["y"]),
    ]
    wide = [small[0] if small[0] == 100 else 200, 3 if small[0] == 100 else 256]
    m = model(nodes, {"x": (F, small), "z": (F, wide)}, ["y"], {})
    exe = superopt.compile(m)
    given = {"x": drawn(*small), "z": drawn(*wide)}
    near(exe.run(given), reference(m, given))
    (step,) = exe.variants[()]
    assert len(step.code.program.calls) == (kernels or 1)  # of three readers it is not worth it


SHRINKS = {
    "by a condition": [
        helper.make_node("Greater", ["a", "half"], ["m"]),
        helper.make_node("Where", ["m", "a", "none"], ["b"]),
    ],
    "by a threshold": [helper.make_node("ThresholdedRelu", ["a"], ["b"], alpha=0.5)],
}


@pytest.mark.parametrize("name", SHRINKS)
def test_what_a_value_chooses_is_no_move(name: str) -> None:
    """It was computed anew in each window that reads it, without a picture to read (0.67 of
    onnxruntime's speed)."""
    first = helper.make_node("Conv", ["x", "w"], ["a"], pads=[1] * 4)
    last = helper.make_node("Conv", ["b", "w"], ["y"], pads=[1] * 4)
    known = {"w": drawn(16, 16, 3, 3), "half": np.float32(0.5), "none": np.float32(0)}
    m = model([first, *SHRINKS[name], last], {"x": (F, [1, 16, 9, 9])}, ["y"], known)
    exe = superopt.compile(m)
    x = drawn(1, 16, 9, 9)
    near(exe(x=x), reference(m, {"x": x}))
    (step,) = exe.variants[()]
    ways = [o.algorithm for o in step.code.program.options.values()]
    assert sum(w in ("gemm", "winograd", "collapsed_gemm") for w in ways) == 2


def test_an_image_of_fewer_dimensions_is_read_from_a_full_one() -> None:
    """A convolution along one dimension, as Keras writes it, was a product of matrices whose rows
    overlap (0.46 of onnxruntime's speed)."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[0, 2, 0, 2], strides=[1, 2]),
        helper.make_node("Squeeze", ["a", "two"], ["b"]),
        helper.make_node("Relu", ["b"], ["y"]),
    ]
    known = {"w": drawn(32, 32, 1, 5), "two": np.array([2])}
    m = model(nodes, {"x": (F, [1, 32, 1, 40])}, ["y"], known)
    exe = superopt.compile(m)
    x = drawn(1, 32, 1, 40)
    near(exe(x=x), reference(m, {"x": x}))
    (step,) = exe.variants[()]
    assert (1, 32, 1, 20) in {t.shape for t in step.code.program.call_results}


def test_a_collapsed_kernel_is_not_an_image() -> None:
    """Windows seemed to slide over it as over the picture, and vectors went along columns: 0.68 of
    onnxruntime's speed of a convolution by a mixture of kernels."""
    nodes = [
        helper.make_node("MatMul", ["g", "kernels"], ["flat"]),
        helper.make_node("Reshape", ["flat", "shape"], ["w"]),
        helper.make_node("Conv", ["x", "w"], ["y"], pads=[1] * 4),
    ]
    known = {"kernels": drawn(4, 32 * 16 * 9), "shape": np.array([32, 16, 3, 3])}
    m = model(nodes, {"x": (F, [1, 16, 9, 9]), "g": (F, [1, 4])}, ["y"], known)
    exe = superopt.compile(m)
    given = {"x": drawn(1, 16, 9, 9), "g": drawn(1, 4)}
    near(exe.run(given), reference(m, given))
    (step,) = exe.variants[()]
    ways = [o.algorithm for o in step.code.program.options.values()]
    assert "vertical_reduction" not in ways


def shapes(m: onnx.ModelProto, given: dict[str, np.ndarray]) -> set[tuple[object, ...]]:
    """Of what is in memory, of a model that computes what onnxruntime does."""
    exe = superopt.compile(m)
    near(exe.run(given), reference(m, given))
    (step,) = exe.variants[()]
    return {t.shape for t in step.code.program.call_results}


def test_a_sum_does_not_look_for_what_lies_in_another_order() -> None:
    """A move that goes into a sum by way of what is elementwise (a forest of oblivious trees): each
    term's place was two quotients and rests, in 173 us of 220 where 8 do."""
    nodes = [
        helper.make_node("Mul", ["x", "z"], ["a"]),
        helper.make_node("Reshape", ["a", "shape"], ["b"]),
        helper.make_node("Mul", ["b", "w"], ["c"]),
        helper.make_node("ReduceSum", ["c", "axes"], ["y"], keepdims=0),
    ]
    known = {"w": drawn(1, 32, 16), "shape": np.array([32, 32, 16]), "axes": np.array([1, 2])}
    m = model(nodes, {"x": (F, [32, 32, 8, 1]), "z": (F, [32, 32, 1, 2])}, ["y"], known)
    found = shapes(m, {"x": drawn(32, 32, 8, 1), "z": drawn(32, 32, 1, 2)})
    assert found == {(32, 32, 16), (32,)}


def test_shuffled_channels_are_read_where_they_are() -> None:
    """By a convolution of single pixels, which reads each for all of its channels."""
    nodes = [
        helper.make_node("Conv", ["x", "v"], ["a"]),
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Concat", ["a", "r"], ["b"], axis=1),
        helper.make_node("Reshape", ["b", "apart"], ["c"]),
        helper.make_node("Transpose", ["c"], ["d"], perm=[0, 2, 1, 3, 4]),
        helper.make_node("Reshape", ["d", "back"], ["e"]),
        helper.make_node("Split", ["e"], ["f", "g"], axis=1),
        helper.make_node("Conv", ["f", "w"], ["y"]),
        helper.make_node("Relu", ["g"], ["z"]),
    ]
    known = {
        "v": drawn(32, 32, 1, 1), "w": drawn(48, 32, 1, 1), "apart": np.array([1, 2, 32, 9, 9]),
        "back": np.array([1, 64, 9, 9]),
    }  # fmt: skip
    m = model(nodes, {"x": (F, [1, 32, 9, 9])}, ["y", "z"], known)
    assert (1, 64, 9, 9) not in shapes(m, {"x": drawn(1, 32, 9, 9)})


def test_images_that_are_filters_are_read_in_place() -> None:
    """As a tracker compares two, each channel alone: a sum over one channel is none."""
    nodes = [
        helper.make_node("Conv", ["z", "v"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Reshape", ["b", "kernels"], ["k"]),
        helper.make_node("Conv", ["x", "k"], ["y"], group=16),
    ]
    known = {"v": drawn(16, 16, 3, 3), "kernels": np.array([16, 1, 5, 5])}
    m = model(nodes, {"x": (F, [1, 16, 13, 13]), "z": (F, [1, 16, 7, 7])}, ["y"], known)
    found = shapes(m, {"x": drawn(1, 16, 13, 13), "z": drawn(1, 16, 7, 7)})
    assert (16, 1, 5, 5) not in found
