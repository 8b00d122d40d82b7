"""Local functions of a model are kernels as what they are made of."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

import superopt
from tests.support.compilation.models import F, near

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
}


@pytest.mark.parametrize("name", CASES)
def test_functions_are_written_out(name: str) -> None:
    m, times = CASES[name]
    x = np.random.default_rng(0).standard_normal((40, 50)).astype(np.float32)
    exe = superopt.compile(m)
    assert exe.fallback_nodes({}) == []
    y = x
    for _ in range(times):
        y = np.tanh(y) + y / 2
    near(exe(x=x), {"y": y})


@pytest.mark.parametrize(("domain", "name"), [("", "Relu"), ("com.microsoft", "Gelu")])
def test_an_operator_is_run_instead_of_a_function_of_its_name(domain: str, name: str) -> None:
    """As in onnxruntime and in ONNX's reference."""
    runtime = pytest.importorskip("onnxruntime")
    m = calling(block(name, domain), name=name, domain=domain)
    m.opset_import.extend([helper.make_opsetid(domain, 1)] if domain else [])
    x = np.random.default_rng(0).standard_normal((40, 50)).astype(np.float32)
    session = runtime.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"])
    (want,) = session.run(None, {"x": x})
    assert not np.allclose(want, np.tanh(x) + x / 2, atol=0.01), "it runs the function"
    near(superopt.compile(m)(x=x), {"y": want})


def leaky(default: float) -> onnx.FunctionProto:
    """LeakyRelu, with an attribute that has a default."""
    node = helper.make_node("LeakyRelu", ["x"], ["y"])
    node.attribute.add(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    made = helper.make_function("own", "Leaky", ["x"], ["y"], [node], [OPSETS[0]])
    made.attribute_proto.append(helper.make_attribute("slope", default))
    return made


@pytest.mark.parametrize("stated", [None, 0.75])
@pytest.mark.parametrize("nested", [False, True])
def test_attributes_that_a_call_leaves_out_are_the_function_s(
    stated: float | None, nested: bool
) -> None:
    m = calling(leaky(0.5), twice("Leaky"), name="Twice" if nested else "Leaky")
    callers = m.functions[1].node if nested else m.graph.node
    for node in callers if stated is not None else ():
        node.attribute.append(helper.make_attribute("slope", stated))
    x = np.random.default_rng(0).standard_normal((40, 50)).astype(np.float32)
    slope = (stated or 0.5) ** (4 if nested else 2)
    exe = superopt.compile(m)
    assert exe.fallback_nodes({}) == []
    near(exe(x=x), {"y": np.where(x < 0, slope * x, x)})


def test_a_function_of_another_opset_stays_one() -> None:
    pytest.importorskip("onnxruntime")
    m = calling(block("Block", opset=17), name="Block")
    x = np.random.default_rng(0).standard_normal((40, 50)).astype(np.float32)
    y = np.tanh(x) + x / 2
    near(superopt.compile(m)(x=x), {"y": np.tanh(y) + y / 2})
