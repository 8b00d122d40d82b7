"""What lies between a Transpose to channels last and one back is computed without both."""

import numpy as np
import onnx
import pytest
from onnx import helper

import superopt
from superopt.ir import graph as ir_graph
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.read.source import read_model
from superopt.plan.graph.simplify import simplify_graph
from tests.support.compilation.models import F, model, reference

NODE = helper.make_node
RNG = np.random.default_rng(0)
KNOWN = {
    "w": RNG.standard_normal((8, 8, 3, 3), np.float32) / 8,
    "c": RNG.standard_normal((8,), np.float32),
    "e": RNG.standard_normal((1, 1, 8), np.float32),
    "q": RNG.standard_normal((1, 2, 9, 8), np.float32),
    "six": np.float32(6),
    "none": np.float32(0),
    "pads": np.array([0, 0, 1, 0, 0, 1, 0, 0]),
    "one": np.array([1]),
    "two": np.array([2]),
    "four": np.array([4]),
    "square": RNG.standard_normal((8, 8), np.float32),
    "shape": np.array([1, 1, 1, 8]),
}  # fmt: skip
LAST, FIRST = [0, 2, 3, 1], [0, 3, 1, 2]


def between(nodes: list[onnx.NodeProto], back: bool = True) -> onnx.ModelProto:
    """A convolution, `nodes` of what it gives with channels last (t to y), and one behind them."""
    begin = [
        NODE("Conv", ["x", "w"], ["f"], pads=[1] * 4),
        NODE("Transpose", ["f"], ["t"], perm=LAST),
    ]
    end = [
        NODE("Transpose", ["y"], ["u"], perm=FIRST),
        NODE("Conv", ["u", "w"], ["z"], pads=[1] * 4),
    ]
    some = [*begin, *nodes, *(end if back else [])]
    return model(some, {"x": (F, [1, 8, 7, 9])}, ["z" if back else "y"], KNOWN)


def left(m: onnx.ModelProto) -> list[str]:
    """Operators that are left of it."""
    return [n.op.name for n in ir_graph.nodes(simplify_graph(import_model(read_model(m)).graph))]


WAYS = {
    "affine": [NODE("Mul", ["t", "c"], ["a"]), NODE("Add", ["e", "a"], ["y"])],
    "capped": [NODE("Max", ["t", "none"], ["a"]), NODE("Min", ["a", "six"], ["y"])],
    "clipped": [NODE("Clip", ["t", "none", "six"], ["y"])],
    "slopes": [NODE("PRelu", ["t", "e"], ["y"])],
    "padded": [NODE("Pad", ["t", "pads", "none"], ["y"])],
    "by six": [NODE("Pad", ["t", "pads", "six"], ["y"])],
    "mirrored": [NODE("Pad", ["t", "pads"], ["y"], mode="reflect")],
    "residual": [NODE("Sigmoid", ["t"], ["a"]), NODE("Mul", ["a", "t"], ["y"])],
    "with a constant": [NODE("Concat", ["t", "q"], ["y"], axis=1)],
    "cut": [NODE("Slice", ["t", "one", "four", "two"], ["y"])],
    "parts": [
        NODE("Split", ["t"], ["a", "b"], axis=3),
        NODE("Concat", ["b", "a"], ["y"], axis=-1),
    ],
    "gate": [
        NODE("ReduceMean", ["t"], ["a"], axes=[1, 2], keepdims=1), NODE("Mul", ["t", "a"], ["y"])
    ],
    "norm": [
        NODE("ReduceMean", ["t"], ["a"], axes=[-1], keepdims=1), NODE("Sub", ["t", "a"], ["y"])
    ],
    "along": [NODE("Softmax", ["t"], ["y"], axis=-1)],
    "there and back": [
        NODE("ReduceSum", ["t", "one"], ["a"], keepdims=0), NODE("Unsqueeze", ["a", "one"], ["y"])
    ],
    "of one": [
        NODE("ReduceMax", ["t"], ["a"], axes=[2], keepdims=1), NODE("Squeeze", ["a", "two"], ["b"]),
        NODE("Relu", ["b"], ["d"]), NODE("Unsqueeze", ["d", "one"], ["y"]),
    ],
}  # fmt: skip


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", WAYS)
def test_what_is_between(name: str) -> None:
    m = between(WAYS[name])
    assert "Transpose" not in left(m)
    x = np.random.default_rng(1).standard_normal((1, 8, 7, 9), np.float32)
    wanted = reference(m, {"x": x})["z"]
    got = superopt.compile(m, threads=1).run({"x": x})["z"]
    np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-4)


def test_zeros_around_belong_to_the_convolution() -> None:
    assert "Pad" not in left(between(WAYS["padded"]))


def test_a_mean_at_the_end_needs_no_order() -> None:
    m = between([NODE("ReduceMean", ["t"], ["y"], axes=[1, 2], keepdims=0)], back=False)
    assert "Transpose" not in left(m)


def test_other_operands_are_transposed_if_more_transposes_vanish() -> None:
    """A gate by products of matrices, as Keras writes squeeze and excite."""
    gate = [
        NODE("ReduceMean", ["t"], ["a"], axes=[1, 2], keepdims=0),
        NODE("MatMul", ["a", "square"], ["b"]),
        NODE("Reshape", ["b", "shape"], ["d"]),
        NODE("Mul", ["t", "d"], ["y"]),
    ]
    m = between(gate)
    assert left(m).count("Transpose") == 1
    x = np.random.default_rng(1).standard_normal((1, 8, 7, 9), np.float32)
    wanted = reference(m, {"x": x})["z"]
    got = superopt.compile(m, threads=1).run({"x": x})["z"]
    np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-4)


@pytest.mark.parametrize(
    "nodes",
    [
        WAYS["norm"],
        [NODE("Flatten", ["t"], ["y"])],
        [NODE("Relu", ["t"], ["a"]), NODE("Flatten", ["a"], ["y"])],
    ],
)
def test_where_none_goes_all_stays(nodes: list[onnx.NodeProto]) -> None:
    m = between(nodes, back=False)
    graph = import_model(read_model(m)).graph
    assert [n.op.name for n in ir_graph.nodes(graph)] == left(m)
