"""3-D convolutions that are lowered along their depth to 2-D ones of sums of slices."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

import superopt
from superopt.ir import graph as ir_graph
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.read.source import read_model
from superopt.plan.graph.simplify import simplify_graph
from tests.support.compilation.models import F, Model, model, reference

pytest.importorskip("onnxruntime")

# image, output channels, attributes; how many 2-D convolutions there are, 0 if it stays
CASES: dict[str, tuple[list[int], int, dict[str, list[int]], int]] = {
    "two slices": ([1, 16, 2, 5, 6], 24, {}, 3),
    "two slices, strided": ([2, 17, 2, 8, 7], 16, {"strides": [1, 2, 2]}, 3),
    "two slices of few channels": ([1, 8, 2, 5, 6], 24, {}, 0),
    "two slices, strided along the depth": ([1, 16, 2, 5, 6], 16, {"strides": [2, 1, 1]}, 0),
    "two slices without padding": ([1, 16, 3, 5, 6], 16, {"pads": [0, 1, 1, 0, 1, 1]}, 0),
    "many channels": ([1, 128, 4, 6, 5], 128, {}, 4),
    "many channels, strided and dilated": (
        [1, 128, 6, 9, 9], 129, {"strides": [1, 2, 1], "dilations": [1, 1, 2]}, 4,
    ),
    "fewer channels": ([1, 64, 4, 6, 5], 128, {}, 0),
    "an odd depth": ([1, 128, 5, 6, 5], 128, {}, 0),
}  # fmt: skip


def convolution(name: str, bias: bool) -> Model:
    shape, outer, more, _ = CASES[name]
    rng = np.random.default_rng(0)
    held = {"w": rng.standard_normal((outer, shape[1], 3, 3, 3)).astype(np.float32)}
    if bias:
        held["b"] = rng.standard_normal(outer).astype(np.float32)
    how = {"pads": [1] * 6, **more}
    nodes = [
        helper.make_node("Conv", ["x", *held], ["c"], **how),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    return model(nodes, {"x": (F, shape)}, ["y"], held)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_slices(name: str, bias: bool) -> None:
    shape, *_, count = CASES[name]
    m = convolution(name, bias)
    graph = simplify_graph(import_model(read_model(m)).graph)
    depths = [
        n.inputs[1].type.shape[2]  # type: ignore[union-attr, index]
        for n in ir_graph.nodes(graph)
        if n.op.name == "Conv"
    ]
    assert depths == ([1] * count if count else [3])
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    wanted = reference(m, {"x": x})["y"]
    got = superopt.compile(m)(x=x)["y"]
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=2e-5 * np.abs(wanted).max())


def test_only_where_results_may_round_in_another_way_and_on_a_cpu() -> None:
    graph = import_model(read_model(convolution("many channels", False))).graph
    for same in (simplify_graph(graph, "E1"), simplify_graph(graph, is_cpu=False)):
        assert sum(n.op.name == "Conv" for n in ir_graph.nodes(same)) == 1
