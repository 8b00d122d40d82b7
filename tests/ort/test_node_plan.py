"""What onnxruntime runs: its optimized graph is read back with the types of a run, and its nodes
run by themselves."""

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from superopt import ort
from superopt.onnx_io.export.stand_in_file import StandInFile
from superopt.onnx_io.runtime_nodes import (
    RuntimeNode,
    drawn_inputs,
    models_of_nodes,
    read_runtime_nodes,
)

RNG = np.random.default_rng(0)


def model(nodes: Sequence[onnx.NodeProto], constants: dict[str, np.ndarray]) -> bytes:
    """A model of x: float[1, 32, 8, 8] to y, each node with a name."""
    for number, n in enumerate(nodes):
        n.name = f"n{number}"
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 32, 8, 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    held = [numpy_helper.from_array(a, name) for name, a in constants.items()]
    body = helper.make_graph(nodes, "g", [x], [y], held)
    opset = [helper.make_opsetid("", 17)]
    return helper.make_model(body, opset_imports=opset, ir_version=8).SerializeToString()


def weights(channels: int = 32) -> dict[str, np.ndarray]:
    return {"w": RNG.standard_normal((channels, 32, 3, 3)).astype(np.float32)}


def nodes_of(proto: bytes) -> list[RuntimeNode]:
    plan = ort.node_plan(proto)
    assert isinstance(plan, ort.NodePlan)
    found = read_runtime_nodes(plan.model, plan.results)
    assert found is not None
    assert all(plan.us[name] > 0 for name, _ in found)
    return [n for _, n in found]


def conv(*after: onnx.NodeProto) -> list[onnx.NodeProto]:
    return [helper.make_node("Conv", ["x", "w"], ["c" if after else "y"], pads=[1] * 4), *after]


def test_a_fused_activation_is_no_node() -> None:
    plain = nodes_of(model(conv(), weights()))
    fused = nodes_of(model(conv(helper.make_node("Relu", ["c"], ["y"])), weights()))
    assert [n.node.op_type for n in plain] == [n.node.op_type for n in fused]
    ours = [next(n for n in some if n.node.op_type.endswith("Conv")) for some in (plain, fused)]
    assert ours[0].key != ours[1].key  # one has an activation


def test_equal_nodes_have_one_key_and_others_another() -> None:
    def key(exponent: float) -> str:
        power = helper.make_node("Pow", ["x", "e"], ["y"])
        (n,) = nodes_of(model([power], {"e": np.float32(exponent)}))
        return n.key

    assert key(3.0) == key(3.0) != key(0.5)


def test_the_same_operand_twice_is_another_node() -> None:
    mul = helper.make_node("Mul", ["x", "x"], ["y"])
    two = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("Mul", ["x", "r"], ["y"])]
    assert nodes_of(model([mul], {}))[0].key != nodes_of(model(two, {}))[-1].key


def test_nodes_run_by_themselves_with_inputs_in_common() -> None:
    some = nodes_of(model(conv(helper.make_node("Relu", ["c"], ["y"])), weights()))
    groups = [some, some[:1]]
    feeds = drawn_inputs(groups)
    for proto, group in zip(models_of_nodes(groups, StandInFile()), groups, strict=True):
        session = ort.load_session(proto, level="disable")
        assert {p.name for p in session.inputs} == set(feeds)
        found = list(ort.run(session, feeds).values())
        shapes = [list(v.shape) for n in group for v in n.results if v is not None]
        assert [list(np.shape(a)) for a in found] == shapes


def test_symbolic_dims_and_unnamed_nodes_have_no_plan() -> None:
    proto = onnx.load_from_string(model(conv(), weights()))
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    assert isinstance(ort.node_plan(proto.SerializeToString()), ort.Failure)
    plan = ort.node_plan(model([helper.make_node("Relu", ["x"], ["y"])], {}))
    assert isinstance(plan, ort.NodePlan)
    assert read_runtime_nodes(plan.model, {}) is None


def test_a_model_that_onnxruntime_rejects_is_a_failure() -> None:
    bad = model([helper.make_node("Conv", ["x", "w"], ["y"])], weights())
    found = ort.node_plan(bad.replace(b"Conv", b"Conw"))
    assert isinstance(found, ort.Failure)


@pytest.mark.parametrize(
    ("op", "attrs", "numbers"),
    [("Gather", {"axis": 1}, ([0, 1], [0, 2])), ("Reshape", {}, ([32, 64], [64, 32]))],
)
def test_values_of_integer_constants_matter(
    op: str, attrs: dict[str, int], numbers: tuple[list[int], list[int]]
) -> None:
    keys = {
        nodes_of(model([helper.make_node(op, ["x", "i"], ["y"], **attrs)], {"i": np.array(v)}))[
            0
        ].key
        for v in numbers
    }
    assert len(keys) == 2
