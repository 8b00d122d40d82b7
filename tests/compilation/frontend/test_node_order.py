"""Models whose nodes are in no order, as some converters leave them, and runtimes take them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import superopt
from superopt.errors import ModelError
from tests.support.compilation.models import F, model, near, net


def turned(m: onnx.ModelProto, rng: np.random.Generator) -> onnx.ModelProto:
    """The same with its nodes in another order."""
    out = onnx.ModelProto()
    out.CopyFrom(m)
    del out.graph.node[:]
    out.graph.node.extend(m.graph.node[k] for k in rng.permutation(len(m.graph.node)))
    return out


def feeds(m: onnx.ModelProto) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in m.graph.input}
    return {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}


@pytest.mark.parametrize("seed", range(4))
def test_nodes_in_any_order(seed: int) -> None:
    m = net()
    other = turned(m, np.random.default_rng(seed))
    with pytest.raises(onnx.checker.ValidationError):
        onnx.checker.check_model(other)
    x = feeds(m)
    near(superopt.compile(other).run(x), superopt.compile(m).run(x))


def test_what_a_branch_reads() -> None:
    """A node comes after what only its subgraphs read."""
    out = [helper.make_tensor_value_info("t", TensorProto.FLOAT, None)]
    yes = helper.make_graph([helper.make_node("Tanh", ["a"], ["t"])], "yes", [], out)
    no = helper.make_graph([helper.make_node("Neg", ["a"], ["t"])], "no", [], out)
    nodes = [
        helper.make_node("If", ["c"], ["y"], then_branch=yes, else_branch=no),
        helper.make_node("Greater", ["s", "zero"], ["c"]),
        helper.make_node("ReduceSum", ["a"], ["s"], keepdims=0),
        helper.make_node("MatMul", ["x", "x"], ["a"]),
    ]
    m = model([], {"x": (F, [8, 8])}, [], {"zero": np.array(0, np.float32)})
    m.graph.node.extend(nodes)
    m.graph.output.append(helper.make_tensor_value_info("y", F, [8, 8]))
    x = feeds(m)["x"]
    for v in (x, -np.abs(x)):
        a = v @ v
        near(superopt.compile(m)(x=v), {"y": np.tanh(a) if a.sum() > 0 else -a})


def test_nodes_that_wait_for_each_other() -> None:
    nodes = [helper.make_node("Add", ["x", "b"], ["a"]), helper.make_node("Neg", ["a"], ["b"])]
    m = model([], {"x": (F, [3])}, [])
    m.graph.node.extend(nodes)
    m.graph.output.append(helper.make_tensor_value_info("a", F, [3]))
    with pytest.raises(ModelError, match="b"):
        superopt.compile(m)
