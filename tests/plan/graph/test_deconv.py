"""Transposed convolutions of one place, which are products of matrices, and others, which are
convolutions where that pays."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

import superopt
from superopt.ir import graph as ir_graph
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.read.source import read_model
from superopt.plan.graph.simplify import simplify_graph
from tests.support.compilation.models import F, model, near, reference

pytest.importorskip("onnxruntime")

RNG = np.random.default_rng(0)
CASES = {
    "a generator's first": ([3, 24, 1, 1], [24, 16, 4, 4], {}, False),
    "of a stride, with a bias": ([2, 24, 1, 1], [24, 8, 7, 5], {"strides": [2, 3]}, True),
    "along one dimension": ([2, 24, 1], [24, 8, 9], {}, True),
}
OTHERS = {
    "cut": ([2, 24, 1, 1], [24, 8, 5, 5], {"pads": [1, 1, 1, 1]}),
    "moved": (
        [2, 24, 1, 1], [24, 8, 5, 5],
        {"pads": [1, 0, 0, 0], "strides": [2, 1], "output_padding": [1, 0]},
    ),
    "dilated": ([2, 24, 1, 1], [24, 8, 3, 3], {"dilations": [2, 2]}),
    "in groups": ([2, 24, 1, 1], [24, 8, 5, 5], {"group": 2}),
    "of two places": ([2, 24, 1, 2], [24, 8, 5, 5], {}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_they_are_products(name: str) -> None:
    """As sums over windows nearly all of their terms were zeros (0.3 of onnxruntime's speed)."""
    shape, weights, how, bias = CASES[name]
    assert left(name, shape, weights, how, bias) == 0


@pytest.mark.parametrize("name", OTHERS)
def test_others_are_not(name: str) -> None:
    shape, weights, how = OTHERS[name]
    assert left(name, shape, weights, how, True) == 1


LONG = {
    "that touch": ([2, 6, 5, 4], [6, 3, 9, 8], {"strides": [9, 8]}),
    "that overlap, cut": (
        [1, 4, 5, 6], [4, 3, 20, 19], {"strides": [8, 9], "pads": [3, 2, 5, 1]},
    ),
    "of a part of a stride": (
        [1, 4, 3, 6], [4, 2, 5, 25], {"strides": [7, 10], "output_padding": [6, 4]},
    ),
    "in groups, of a signal": ([3, 6, 17], [6, 2, 200], {"strides": [80], "group": 3}),
    "of a signal, much of it cut": (
        [1, 5, 9], [5, 1, 300], {"strides": [100], "pads": [250, 250]},
    ),
    "of one place, cut": ([1, 4, 1, 1], [4, 3, 12, 9], {"strides": [12, 9], "pads": [1] * 4}),
}  # fmt: skip


SHORT = {
    "of a decoder": ([1, 8, 9, 8], [8, 16, 4, 4], {"strides": [2, 2], "pads": [1] * 4}),
    "of a signal": ([1, 8, 30], [8, 16, 9], {"strides": [3], "pads": [2, 4]}),
    "of three dimensions": ([1, 3, 7, 8, 9], [3, 16, 4, 4, 6], {"strides": [2, 2, 3]}),
}
PHASES = {
    "of windows that touch": ([1, 8, 9, 8], [8, 16, 2, 2], {"strides": [2, 2]}),
    "of few channels": ([1, 8, 9, 8], [8, 3, 4, 4], {"strides": [2, 2]}),
    "of few places": ([1, 8, 4, 4], [8, 16, 4, 4], {"strides": [2, 2]}),
    "of other windows": ([1, 8, 9, 8], [8, 16, 3, 3], {"strides": [2, 2]}),
    "of more at the end": ([1, 8, 30], [8, 16, 6], {"strides": [3], "output_padding": [1]}),
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", [*SHORT, *PHASES])
def test_those_of_short_strides_where_that_pays(name: str) -> None:
    shape, weights, how = (SHORT | PHASES)[name]
    assert left(name, shape, weights, how, True) == (name in PHASES)


def test_nothing_is_filled_where_numbers_may_be_infinite() -> None:
    known = {"w": np.ones((1, 1, 90), np.float32)}
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], strides=[100])
    m = model([node], {"x": (F, [1, 1, 3])}, ["y"], known)
    x = np.array([[[1, np.inf, 2]]], np.float32)
    got = superopt.compile(m, float_class="E1")(x=x)["y"]
    np.testing.assert_array_equal(got, reference(m, {"x": x})["y"])


@pytest.mark.one_in(12)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", LONG)
def test_long_strides_are_convolutions(name: str, bias: bool) -> None:
    """As sums over windows they took 300 to 1500 times as long as this."""
    shape, weights, how = LONG[name]
    assert left(name, shape, weights, how, bias) == 0


def test_long_strides_of_unknown_sizes() -> None:
    known = {"w": RNG.standard_normal((4, 2, 90)).astype(np.float32)}
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], strides=[70], pads=[11, 3])
    m = model([node], {"x": (F, ["n", 4, "length"])}, ["y"], known)
    exe = superopt.compile(m)
    given = model([node], {"x": (F, ["n", 4, "length"]), "w": (F, ["i", "o", "k"])}, ["y"])
    other = superopt.compile(given)
    for shape in ((1, 4, 7), (3, 4, 1)):
        x = RNG.standard_normal(shape).astype(np.float32)
        near(exe(x=x), reference(m, {"x": x}))
        near(other(x=x, **known), reference(given, {"x": x, **known}))


def left(
    name: str, shape: list[int], weights: list[int], how: dict[str, list[int]], bias: bool
) -> int:
    """How many are left of a model with one, which computes what it did."""
    known = {"w": RNG.standard_normal(weights).astype(np.float32)}
    count = weights[1] * int(how.get("group", 1))  # type: ignore[call-overload]
    known |= {"b": RNG.standard_normal(count).astype(np.float32)} if bias else {}
    nodes = [
        helper.make_node("ConvTranspose", ["x", "w", *(["b"] if bias else [])], ["a"], **how),
        helper.make_node("Relu", ["a"], ["y"]),
    ]
    m = model(nodes, {"x": (F, shape)}, ["y"], known)
    x = RNG.standard_normal(shape).astype(np.float32)
    near(superopt.compile(m)(x=x), reference(m, {"x": x}))
    graph = simplify_graph(import_model(read_model(m)).graph)
    return sum(n.op.name == "ConvTranspose" for n in ir_graph.nodes(graph))
