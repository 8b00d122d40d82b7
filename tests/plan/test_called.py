"""Local functions of a model are kernels as what they are made of."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

import superopt
from tests.plan.test_compile import F, near

OPSETS = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]


def calling(*functions: onnx.FunctionProto, name: str, domain: str = "own") -> onnx.ModelProto:
    """y = f(f(x))"""
    nodes = [
        helper.make_node(name, ["x"], ["a"], domain=domain),
        helper.make_node(name, ["a"], ["y"], domain=domain),
    ]
    x, y = (helper.make_tensor_value_info(n, F, [40, 50]) for n in "xy")
    graph = helper.make_graph(nodes, "g", [x], [y])
    return helper.make_model(graph, opset_imports=OPSETS, functions=functions, ir_version=9)


def block(name: str, domain: str = "own", opset: int = 18) -> onnx.FunctionProto:
    """tanh(x) + x / 2"""
    half = helper.make_node("Constant", [], ["h"], value_float=0.5)
    nodes = [
        helper.make_node("Tanh", ["x"], ["t"]),
        half,
        helper.make_node("Mul", ["x", "h"], ["b"]),
        helper.make_node("Add", ["t", "b"], ["y"]),
    ]
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_function(domain, name, ["x"], ["y"], nodes, opsets)


def twice(of: str) -> onnx.FunctionProto:
    nodes = [
        helper.make_node(of, ["x"], ["a"], domain="own"),
        helper.make_node(of, ["a"], ["y"], domain="own"),
    ]
    return helper.make_function("own", "Twice", ["x"], ["y"], nodes, OPSETS)


CASES = {
    "one": (calling(block("Block"), name="Block"), 2),
    "one that calls another": (calling(block("Block"), twice("Block"), name="Twice"), 4),
    "one of an operator's name": (calling(block("Relu", ""), name="Relu", domain=""), 2),
}


@pytest.mark.parametrize("name", CASES)
def test_functions_are_written_out(name: str) -> None:
    m, times = CASES[name]
    x = np.random.default_rng(0).standard_normal((40, 50)).astype(np.float32)
    exe = superopt.compile(m)
    assert exe.fallen({}) == []
    y = x
    for _ in range(times):
        y = np.tanh(y) + y / 2
    near(exe(x=x), {"y": y})


def test_a_function_of_another_opset_stays_one() -> None:
    pytest.importorskip("onnxruntime")
    m = calling(block("Block", opset=17), name="Block")
    x = np.random.default_rng(0).standard_normal((40, 50)).astype(np.float32)
    y = np.tanh(x) + x / 2
    near(superopt.compile(m)(x=x), {"y": np.tanh(y) + y / 2})
