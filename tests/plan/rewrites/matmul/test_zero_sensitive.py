"""Zeros stay zeros where a function breaks at them: in products by parts and in tiles other rows
would leave their last bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper as h
from onnx import numpy_helper as nh

import superopt
from superopt.compilation.cpu.native_segment import NativeSegment
from superopt.kernels.processor import ZEN4
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.read.source import read_model
from superopt.plan.passes import plan_program
from superopt.plan.program.plan import Settings

# What comes after the product `t`, whose rows of zeros give zeros.
AFTER: dict[str, Sequence[onnx.NodeProto]] = {
    "L2": [
        h.make_node("ReduceL2", ["t"], ["n"], axes=[1], keepdims=1),
        h.make_node("Max", ["n", "tiny"], ["m"]),
        h.make_node("Div", ["t", "m"], ["y"]),
    ],
    "root of squares": [
        h.make_node("Mul", ["t", "t"], ["q"]),
        h.make_node("ReduceMean", ["q"], ["s"], axes=[1], keepdims=1),
        h.make_node("Add", ["s", "tiny"], ["a"]),
        h.make_node("Sqrt", ["a"], ["r"]),
        h.make_node("Reciprocal", ["r"], ["i"]),
        h.make_node("Mul", ["t", "i"], ["y"]),
    ],
    "L1": [
        h.make_node("ReduceL1", ["t"], ["n"], axes=[1], keepdims=1),
        h.make_node("Add", ["n", "tiny"], ["m"]),
        h.make_node("Div", ["t", "m"], ["y"]),
    ],
    "sign": [h.make_node("Sign", ["t"], ["y"])],
    "floor, moved": [
        h.make_node("Transpose", ["t"], ["u"]),
        h.make_node("Relu", ["u"], ["v"]),
        h.make_node("Neg", ["v"], ["z"]),
        h.make_node("Floor", ["z"], ["y"]),
    ],
    "is it one": [
        h.make_node("Cast", ["t"], ["b"], to=onnx.TensorProto.BOOL),
        h.make_node("Cast", ["b"], ["y"], to=onnx.TensorProto.FLOAT),
    ],
    "a second product": [
        h.make_node("MatMul", ["t", "w2"], ["u"]),
        h.make_node("Sign", ["u"], ["y"]),
    ],
    "root of powers": [
        h.make_node("Pow", ["t", "two"], ["q"]),
        h.make_node("ReduceSum", ["q", "last"], ["s"], keepdims=1),
        h.make_node("Sqrt", ["s"], ["r"]),
        h.make_node("Add", ["r", "tiny"], ["m"]),
        h.make_node("Div", ["t", "m"], ["y"]),
    ],
    "its own mean taken off": [
        h.make_node("ReduceMean", ["t"], ["s"], axes=[1], keepdims=1),
        h.make_node("Sub", ["t", "s"], ["c"]),
        h.make_node("ReduceL2", ["c"], ["n"], axes=[1], keepdims=1),
        h.make_node("Add", ["n", "tiny"], ["m"]),
        h.make_node("Div", ["c", "m"], ["y"]),
    ],
    "above": [
        h.make_node("Greater", ["t", "zero"], ["b"]),
        h.make_node("Cast", ["b"], ["y"], to=onnx.TensorProto.FLOAT),
    ],
    "below, a choice": [
        h.make_node("Less", ["t", "zero"], ["b"]),
        h.make_node("Where", ["b", "two", "zero"], ["y"]),
    ],
    "are there any": [
        h.make_node("Abs", ["t"], ["p"]),
        h.make_node("ReduceSum", ["p", "last"], ["s"], keepdims=1),
        h.make_node("Greater", ["s", "zero"], ["b"]),
        h.make_node("Cast", ["b"], ["f"], to=onnx.TensorProto.FLOAT),
        h.make_node("Mul", ["t", "zero"], ["o"]),
        h.make_node("Add", ["f", "o"], ["y"]),
    ],
    "root": [h.make_node("Abs", ["t"], ["p"]), h.make_node("Sqrt", ["p"], ["y"])],
}
MIXING = {"strassen", "winograd"}
CONSTANTS = {
    "tiny": np.float32(1e-12),
    "zero": np.float32(0),
    "one": np.float32(1),
    "two": np.float32(2),
    "last": np.array([1]),
}
# What is the same on both sides of zero, or does not ask for it.
PLAIN: dict[str, Sequence[onnx.NodeProto]] = {
    "Tanh": [h.make_node("Tanh", ["t"], ["y"])],
    "LeakyRelu": [h.make_node("LeakyRelu", ["t"], ["y"], alpha=0.2)],
    "PRelu": [h.make_node("PRelu", ["t", "two"], ["y"])],
    "Elu": [h.make_node("Elu", ["t"], ["y"], alpha=0.7)],
    "Selu": [h.make_node("Selu", ["t"], ["y"])],
    "a square": [h.make_node("Pow", ["t", "two"], ["y"])],
    "LeakyRelu, written out": [
        h.make_node("Greater", ["t", "zero"], ["b"]),
        h.make_node("Mul", ["t", "two"], ["n"]),
        h.make_node("Where", ["b", "t", "n"], ["y"]),
    ],
    "Relu by a mask": [
        h.make_node("Greater", ["t", "zero"], ["b"]),
        h.make_node("Cast", ["b"], ["f"], to=onnx.TensorProto.FLOAT),
        h.make_node("Mul", ["t", "f"], ["y"]),
    ],
    "above one": [
        h.make_node("Greater", ["t", "one"], ["b"]),
        h.make_node("Cast", ["b"], ["y"], to=onnx.TensorProto.FLOAT),
    ],
    "a norm of a sum that is not zero": [
        h.make_node("Add", ["t", "one"], ["u"]),
        h.make_node("ReduceL2", ["u"], ["n"], axes=[1], keepdims=1),
        h.make_node("Div", ["u", "n"], ["y"]),
    ],
}


def model(
    first: onnx.NodeProto, after: Sequence[onnx.NodeProto], shape: list[int],
    weights: dict[str, np.ndarray],
) -> onnx.ModelProto:  # fmt: skip
    held = {**weights, **CONSTANTS}
    graph = h.make_graph(
        [first, *after], "g",
        [h.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)],
        [h.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [nh.from_array(np.asarray(v), k) for k, v in held.items()],
    )  # fmt: skip
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 13)], ir_version=8)


def product(after: Sequence[onnx.NodeProto]) -> tuple[onnx.ModelProto, np.ndarray]:
    """Of 256 rows, the last 57 of them zeros, with a matrix for which parts pay."""
    rng = np.random.default_rng(0)
    w = {n: rng.standard_normal((256, 256), np.float32) for n in ("w", "w2")}
    x = rng.standard_normal((256, 256), np.float32)
    x[199:] = 0
    return model(h.make_node("MatMul", ["x", "w"], ["t"]), after, [256, 256], w), x


def windows(after: Sequence[onnx.NodeProto]) -> tuple[onnx.ModelProto, np.ndarray]:
    """Of a picture whose lower half is zeros."""
    rng = np.random.default_rng(0)
    w = {"w": rng.standard_normal((32, 32, 3, 3), np.float32)}
    x = rng.standard_normal((1, 32, 56, 56), np.float32)
    x[:, :, 28:] = 0
    conv = h.make_node("Conv", ["x", "w"], ["t"], pads=[1, 1, 1, 1])
    return model(conv, after, [1, 32, 56, 56], w), x


def ways(m: onnx.ModelProto) -> set[str]:
    """How its kernels are computed."""
    found = plan_program(import_model(read_model(m)).graph, {}, Settings(64, processor=ZEN4))
    return {o.algorithm for o in found.options.values()}


Made = Callable[[Sequence[onnx.NodeProto]], tuple[onnx.ModelProto, np.ndarray]]
CASES = [(product, name) for name in AFTER] + [
    (windows, name) for name in AFTER if name != "a second product"
]


@pytest.mark.one_in(6)
@pytest.mark.parametrize(("made", "name"), CASES, ids=lambda x: getattr(x, "__name__", x))
def test_zeros_stay(made: Made, name: str) -> None:
    given, x = made(AFTER[name])
    exe = superopt.compile(given, threads=1)
    (y,) = exe(x=x).values()
    assert not ways(given) & MIXING
    where = (x == 0).all(axis=1, keepdims=True) if made is product else x[:, :1] == 0
    if made is windows:
        where = where & (np.roll(where, 1, axis=2))  # the windows whose rows are all of it
    zeros = np.broadcast_to(where, x.shape)
    zeros = zeros.transpose() if name == "floor, moved" else zeros
    assert np.isfinite(y).all()
    assert zeros.any()
    assert (y[zeros] == 0).all()


@pytest.mark.one_in(2)
@pytest.mark.parametrize("made", [product, windows])
@pytest.mark.parametrize("name", PLAIN)
def test_others_are_computed_by_parts_and_in_tiles(made: Made, name: str) -> None:
    given, _ = made(PLAIN[name])
    assert ways(given) & MIXING


def test_a_bias_that_is_not_zero_is_no_row_of_zeros() -> None:
    given, _ = product(
        [h.make_node("Add", ["t", "bias"], ["u"]), h.make_node("Sign", ["u"], ["y"])]
    )
    for value, parts in ((1.0, True), (0.0, False)):
        new = onnx.ModelProto()
        new.CopyFrom(given)
        bias = np.full(256, value, np.float32)
        new.graph.initializer.append(nh.from_array(bias, "bias"))
        assert ("strassen" in ways(new)) == parts


def test_alike_ones_of_which_one_is_delicate(tmp_path: Path) -> None:
    """Each is computed in its way, also where the model is planned again by what was chosen."""
    rng = np.random.default_rng(0)
    nodes = [h.make_node("Conv", ["x", f"w{o}"], [o], pads=[1] * 4) for o in "ab"]
    kind, shape = onnx.TensorProto.FLOAT, [1, 32, 56, 56]
    graph = h.make_graph(
        [*nodes, h.make_node("Sign", ["a"], ["s"])], "g",
        [h.make_tensor_value_info("x", kind, shape)],
        [h.make_tensor_value_info(o, kind, shape) for o in "abs"],
        [nh.from_array(rng.standard_normal((32, 32, 3, 3), np.float32), f"w{o}") for o in "ab"],
    )  # fmt: skip
    exe = superopt.compile(
        h.make_model(graph, opset_imports=[h.make_opsetid("", 13)], ir_version=8)
    )
    (step,) = exe.variant({})
    assert isinstance(step, NativeSegment)
    found = [o.algorithm for o in step.code.program.options.values()]
    assert {"gemm", "winograd"} <= {*found}
    exe.save(tmp_path / "m")
    (again,) = superopt.load(tmp_path / "m").variant({})
    assert isinstance(again, NativeSegment)
    assert again.code.program.options == step.code.program.options
