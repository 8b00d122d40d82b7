"""Rows that lie across others (plan/rewrites/reductions/strided_softmax.py): one kernel where a sum
goes along channels."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from superopt.compilation.cuda import load_compiler
from superopt.kernels.algorithms import space
from superopt.kernels.algorithms.problem import Choice, Problem
from superopt.kernels.loops.option import Option
from superopt.onnx_io.read.source import read_model
from tests.support.breadth import examples
from tests.support.compilation.models import F, model, reference
from tests.support.gpu.compilation import feeds, near, program
from tests.support.gpu.models import drawn, node
from tests.support.gpu.strided_softmax import alone, norm_of_channels

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("interpreted")]

PICTURES = (2, 21, 6, 11)


def by_hand(shape: tuple[int, ...], axes: list[int], keep: int = 1) -> onnx.ModelProto:
    """A softmax of several axes, of which numbers may lie without these."""
    nodes = [
        node("ReduceMax", "x", "m0", axes=axes, keepdims=keep),
        node("Sub", "x", "m", "d"),
        node("Exp", "d", "e"),
        node("ReduceSum", "e", "axes", "s0", keepdims=keep),
        node("Div", "e", "s", "y"),
    ]
    if keep:
        nodes += [node("Identity", "m0", "m"), node("Identity", "s0", "s")]
    else:
        nodes += [node("Unsqueeze", a, "axes", b) for a, b in (("m0", "m"), ("s0", "s"))]
    first = {n.output[0]: n for n in nodes}
    nodes = [first[n] for n in ("m0", "m", "d", "e", "s0", "s", "y")]
    return model(nodes, {"x": (F, [*shape])}, ["y"], {"axes": np.array(axes)})


def between(op: str, after: bool, **how: object) -> onnx.ModelProto:
    """Behind a convolution, and before one."""
    known = {"w": drawn(24, 16, 1, 1, scale=0.3), "v": drawn(16, 24, 1, 1, scale=0.1)}
    nodes = [node("Conv", "x", "w", "a"), node(op, "a", "b" if after else "y", axis=1, **how)]
    if after:
        nodes.append(node("Conv", "b", "v", "y"))
    return model(nodes, {"x": (F, [2, 16, 9, 10])}, ["y"], known)


def joined() -> onnx.ModelProto:
    nodes = [
        node("Softmax", "x", "a", axis=1),
        node("Neg", "x", "b"),
        node("Concat", "a", "b", "y", axis=1),
    ]
    return model(nodes, {"x": (F, [*PICTURES])}, ["y"], {})


def a_part() -> onnx.ModelProto:
    """Of what is joined before a convolution, in whose memory it is written."""
    known = {
        "w": drawn(24, 16, 1, 1, scale=0.3),
        "v": drawn(32, 16, 1, 1, scale=0.3),
        "u": drawn(16, 56, 1, 1, scale=0.1),
    }
    nodes = [
        node("Conv", "x", "w", "p"),
        node("Conv", "x", "v", "q"),
        node("Softmax", "p", "a", axis=1),
        node("Relu", "q", "b"),
        node("Concat", "a", "b", "c", axis=1),
        node("Conv", "c", "u", "y"),
    ]
    return model(nodes, {"x": (F, [2, 16, 9, 6])}, ["y"], known)


def read_twice() -> onnx.ModelProto:
    """The numbers of rows are results, too."""
    nodes = [
        node("ReduceMean", "x", "m", axes=[1]),
        node("Sub", "x", "m", "d"),
        node("Mul", "d", "d", "q"),
        node("ReduceMean", "q", "v", axes=[1]),
        node("Add", "v", "e", "u"),
        node("Sqrt", "u", "r"),
        node("Div", "d", "r", "y"),
    ]
    known = {"e": np.float32(1e-5)}
    return model(nodes, {"x": (F, [*PICTURES])}, ["y", "m", "r"], known)


def of_others() -> onnx.ModelProto:
    """Of many more numbers than a row has: the sum is a kernel of its own."""
    nodes = [
        node("ReduceSum", "z", "last", "s", keepdims=0),
        node("Unsqueeze", "s", "middle", "u"),
        node("Mul", "x", "u", "y"),
    ]
    inputs = {"x": (F, [4, 30, 12]), "z": (F, [4, 12, 5000])}
    known = {"last": np.array([2]), "middle": np.array([1])}
    return model(nodes, inputs, ["y"], known)


# A model, and how many kernels it is.
CASES: dict[str, tuple[Callable[[], onnx.ModelProto], int]] = {
    "channels": (lambda: alone("Softmax", *PICTURES, axis=1), 1),
    "logarithms": (lambda: alone("LogSoftmax", *PICTURES, axis=1), 1),
    "columns": (lambda: alone("Softmax", 3, 40, 33, axis=-2), 1),
    "the first axis": (lambda: alone("Softmax", 40, 33, axis=0), 1),
    "lengths": (lambda: alone("LpNormalization", *PICTURES, axis=1, p=2), 1),
    "places of one": (lambda: alone("Softmax", 4, 30, 1, 1, axis=1), 1),
    "a single picture": (lambda: alone("Softmax", 1, 300, 2, 9, axis=1), 1),
    "many pixels": (lambda: alone("Softmax", 1, 5, 130, 140, axis=1), 1),
    "longer than that": (lambda: alone("Softmax", 1, 600, 3, axis=1), 4),
    "two axes": (lambda: by_hand((4, 6, 10, 7), [1, 3]), 1),
    "two axes, without these": (lambda: by_hand((4, 6, 10, 7), [1, 3], keep=0), 1),
    "a norm": (lambda: norm_of_channels(2, 24, 5, 18), 1),
    "behind a convolution": (lambda: between("Softmax", False), 3),
    "between convolutions": (lambda: between("Softmax", True), 5),
    "lengths behind one": (lambda: between("LpNormalization", False, p=2), 3),
    "joined": (joined, 2),
    "a part of what is joined": (a_part, 6),
    "numbers of others": (of_others, 3),
    "numbers that are results": (read_twice, 4),
}


@pytest.mark.round_robin(3)
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("name", CASES)
def test_the_same(name: str, precision: str) -> None:
    m = CASES[name][0]()
    x = feeds(m)
    near(load_compiler.compile_model(read_model(m), precision).run(x), reference(m, x), precision)


@pytest.mark.parametrize("name", CASES)
def test_as_many_kernels(name: str) -> None:
    make, many = CASES[name]
    assert len(program(make()).calls) == many


@examples(12)
@given(data=st.data())
def test_any_axes_of_any_shape(data: st.DataObject) -> None:
    """In any order, too: as many are rows as numbers of which nothing is summed."""
    shape = tuple(data.draw(st.lists(st.sampled_from([1, 2, 3, 5, 8, 17]), min_size=2, max_size=4)))
    axes = sorted(data.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1)))
    order = data.draw(st.permutations(range(len(shape))))
    turned = [shape[n] for n in order]
    m = by_hand(tuple(turned), axes, keep=data.draw(st.integers(0, 1)))
    first = node("Transpose", "given", "x", perm=order)
    m.graph.node.insert(0, first)
    m.graph.input[0].CopyFrom(onnx.helper.make_tensor_value_info("given", F, shape))
    given_ = {"given": drawn(*shape)}
    near(load_compiler.compile_model(read_model(m)).run(given_), reference(m, given_), "fp32")


@pytest.mark.parametrize("shape", [(2, 21, 64, 64), (2, 300, 32, 32), (1, 500, 8, 128)])
def test_neighbours_are_rows_of_one_program(shape: tuple[int, ...]) -> None:
    """Of a sector of memory all is read, also where there are few of them."""
    (option,) = program(alone("Softmax", *shape, axis=1)).options.values()
    assert option.algorithm == "row_wise"
    assert dict(option.knobs)["rows"] >= 16


# Of these the best, or within 5 % of it, on an H100; what a thread has of several rows at a time.
TAKEN = {
    (16, 21, 512, 512, 1): "rows=128 warps=1",
    (16, 96, 112, 112, 1): "rows=64 warps=2",
    (8, 150, 128, 128, 1): "rows=64 warps=4",
    (8, 2, 1024, 1024, 1): "rows=512 warps=1",
    (2097152, 8, 1): "rows=256 warps=2",
    (1048576, 21, 1): "rows=32 warps=4",
    (524288, 49, 1): "rows=16 warps=1",
    (524288, 64, 1): "rows=32 warps=2",
    (131072, 197, 1): "rows=4 warps=1",
    (131072, 256, 1): "rows=8 warps=2",
    (65536, 384, 1): "rows=4 warps=2",
    (32768, 1000, 1): "rows=2 warps=2",
    (16384, 2048, 1): "warps=4",
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("shape", TAKEN, ids=str)
def test_of_many_rows_so_many_are_a_program(shape: tuple[int, ...]) -> None:
    *sizes, axis = shape
    kind = onnx.TensorProto.FLOAT16
    m = model([node("Softmax", "x", "y", axis=axis)], {"x": (kind, sizes)}, ["y"], {})
    (option,) = program(m, "fp16").options.values()
    assert str(option) == f"row_wise {TAKEN[shape]}"


@pytest.mark.one_in(2)
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_every_option(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    m = norm_of_channels(1, 20, 2, 40)
    x, wanted = feeds(m), reference(m, feeds(m))
    (problem,) = program(m, precision).problems.values()
    some = list(dict.fromkeys(space.options(problem, "cuda", False)))
    assert len(some) > 4
    for option in some:

        def choose(p: Problem, *_: object, option: Option = option, **__: object) -> Choice:
            return space.build_choice(p, option, "cuda")

        monkeypatch.setattr(space, "choose", choose)
        near(load_compiler.compile_model(read_model(m), precision).run(x), wanted, precision)


@pytest.mark.parametrize("norm", ["Softmax", "LayerNormalization"])
@pytest.mark.parametrize("shape", [(1, 6), (2, 6), (1, 3, 4), (3, 1, 2)], ids=str)
def test_a_number_of_all_that_rows_read_within(shape: tuple[int, ...], norm: str) -> None:
    """And another kernel, which does not keep it to itself."""
    nodes = [node("ReduceMax", "x", "a", keepdims=0), node("Sub", "x", "a", "c"),
             node("Mul", "c", "a", "m"), node(norm, *("ms" if norm[0] == "L" else "m"), "p"),
             node("MatMul", "c", "w", "y")]  # fmt: skip
    known = {"w": drawn(shape[-1], 3)} | ({"s": drawn(shape[-1])} if norm[0] == "L" else {})
    m = model(nodes, {"x": (F, [*shape])}, ["p", "y"], known)
    near(load_compiler.compile_model(read_model(m)).run(feeds(m)), reference(m, feeds(m)), "fp32")
