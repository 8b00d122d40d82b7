"""Rows that are known from the beginning on, multiplied with one matrix at once."""

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


def steps(rows: int, columns: int = 300, transposed: bool = False) -> onnx.ModelProto:
    """Three steps: of each the input, times w, and the state before, times u."""
    make = helper.make_node
    nodes = [make("Constant", [], ["s"], value_floats=[0.0]), make("Mul", ["x0", "s"], ["h0"])]
    for k in range(3):
        nodes += [
            make("MatMul", [f"x{k}", "w"], [f"a{k}"]), make("MatMul", [f"h{k}", "u"], [f"b{k}"]),
            make("Add", [f"a{k}", f"b{k}"], [f"c{k}"]), make("Tanh", [f"c{k}"], [f"h{k + 1}"]),
        ]  # fmt: skip
    given = [make("Split", ["x"], [f"x{k}" for k in range(3)], axis=0)]
    rng = np.random.default_rng(0)
    known = {n: rng.standard_normal((columns, columns), np.float32) / 17 for n in "wu"}
    return model([*given, *nodes], {"x": (F, [3 * rows, columns])}, ["h3", "a1"], known)


def products(m: onnx.ModelProto) -> int:
    graph = simplify_graph(import_model(read_model(m)).graph)
    return sum(n.op.name == "MatMul" for n in ir_graph.nodes(graph))


@pytest.mark.parametrize(
    ("rows", "columns", "wanted"), [(1, 300, 4), (3, 300, 4), (9, 300, 6), (1, 200, 6)]
)
def test_inputs_of_all_steps_at_once(rows: int, columns: int, wanted: int) -> None:
    """But not the states, each of which hangs on the one before; nor many rows, nor small
    matrices."""
    m = steps(rows, columns)
    assert products(m) == wanted
    x = np.random.default_rng(1).standard_normal((3 * rows, columns), np.float32)
    wanted_ = reference(m, {"x": x})
    got = superopt.compile(m, threads=1).run({"x": x})
    for name, y in wanted_.items():
        np.testing.assert_allclose(got[name], y, rtol=2e-5, atol=2e-5)
