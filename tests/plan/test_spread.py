"""Transposed convolutions of one place, which are products of matrices."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

import superopt
from superopt.ir import graph as g
from superopt.onnx_io.importer import import_model
from superopt.onnx_io.source import read
from superopt.plan.simplify import simplified
from tests.plan.test_compile import F, model, near, reference

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
    graph = simplified(import_model(read(m)).graph)
    return sum(n.op.name == "ConvTranspose" for n in g.nodes(graph))
