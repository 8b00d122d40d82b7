"""Subgraphs of If, Loop and Scan read the values outside that they always read."""

from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from superopt.ir.graph import Graph, intern_node, node
from superopt.onnx_io.export.exporter import export_model
from superopt.ops import OPS
from tests.support.onnx_io.models import ints, model, value, weights
from tests.support.onnx_io.rounds import (
    assert_runs_alike,
    assert_same,
    imported,
    session,
    through,
)

SUBGRAPHS: dict[str, Callable[[], onnx.ModelProto]] = {}


def subgraph(make: Callable[[], onnx.ModelProto]) -> Callable[[], onnx.ModelProto]:
    SUBGRAPHS[make.__name__] = make
    return make


def branch(name: str, nodes: list[onnx.NodeProto], out: str) -> onnx.GraphProto:
    return helper.make_graph(nodes, name, [], [value(out, [2])])


@subgraph
def captures_of_what_is_merged() -> onnx.ModelProto:
    """The branches read values that are one value once equal nodes are merged."""
    then = branch("then", [helper.make_node("Neg", ["a"], ["t"])], "t")
    other = branch("else", [helper.make_node("Abs", ["b"], ["e"])], "e")
    nodes = [
        helper.make_node("Add", ["x", "w"], ["a"], "left"),
        helper.make_node("Add", ["x", "v"], ["b"], "right"),
        helper.make_node("If", ["c"], ["y"], "if", then_branch=then, else_branch=other),
    ]
    w = [ints("w", 1, 2), ints("v", 1, 2)]
    for t in w:
        t.CopyFrom(numpy_helper.from_array(np.array([1, 2], np.float32), t.name))
    inputs = [value("x", [2]), value("c", [], TensorProto.BOOL)]
    return model(nodes, inputs, [value("y", [2])], w)


@subgraph
def captures_of_what_is_folded() -> onnx.ModelProto:
    then = branch("then", [helper.make_node("Add", ["x", "s"], ["t"])], "t")
    other = branch("else", [helper.make_node("Sub", ["x", "s"], ["e"])], "e")
    nodes = [
        helper.make_node("Add", ["w", "w"], ["s"], "constants"),
        helper.make_node("If", ["c"], ["y"], "if", then_branch=then, else_branch=other),
    ]
    inputs = [value("x", [2]), value("c", [], TensorProto.BOOL)]
    return model(nodes, inputs, [value("y", [2])], [weights("w", 2)])


@subgraph
def names_that_come_again_outside() -> onnx.ModelProto:
    """`t` is inside a branch and, later in the file, outside: legal in this order only."""
    then = branch("then", [helper.make_node("Neg", ["x"], ["t"])], "t")
    inner = branch("then", [helper.make_node("Neg", ["x"], ["u"])], "u")
    nested = branch("else", [helper.make_node("If", ["c"], ["e"], then_branch=inner,
                                              else_branch=then)], "e")  # fmt: skip
    nodes = [
        helper.make_node("If", ["c"], ["i"], "if", then_branch=then, else_branch=nested),
        helper.make_node("Relu", ["x"], ["t"], "relu"),
        helper.make_node("Exp", ["t"], ["u"], "exp"),
        helper.make_node("Add", ["i", "u"], ["y"], "add"),
    ]
    inputs = [value("x", [2]), value("c", [], TensorProto.BOOL)]
    return model(nodes, inputs, [value("y", [2])])


@subgraph
def a_loop_that_scans() -> onnx.ModelProto:
    body = helper.make_graph(
        [
            helper.make_node("Add", ["state", "w"], ["next"], "inner_add"),
            helper.make_node("Mul", ["next", "h"], ["row"], "inner_mul"),
            helper.make_node("Identity", ["on"], ["still"], "inner_identity"),
        ],
        "body",
        [value("i", [], TensorProto.INT64), value("on", [], TensorProto.BOOL), value("state", [2])],
        [value("still", [], TensorProto.BOOL), value("next", [2]), value("row", [2])],
        [weights("w", 2)],
    )
    scan = helper.make_graph(
        [
            helper.make_node("Add", ["s", "r"], ["sum"]),
            helper.make_node("Mul", ["sum", "h"], ["m"]),
        ],
        "scan",
        [value("s", [2]), value("r", [2])],
        [value("sum", [2]), value("m", [2])],
    )
    nodes = [
        helper.make_node("Exp", ["x"], ["h"], "exp"),
        helper.make_node("Loop", ["times", "", "x"], ["last", "rows"], "loop", body=body),
        helper.make_node(
            "Scan", ["last", "rows"], ["y", "z"], "scan", body=scan, num_scan_inputs=1
        ),
    ]
    times = numpy_helper.from_array(np.array(3, np.int64), "times")
    outputs = [value("y", [2]), value("z", [None, 2])]
    return model(nodes, [value("x", [2])], outputs, [times])


@pytest.mark.parametrize("name", SUBGRAPHS)
def test_subgraphs_follow_what_they_read(name: str) -> None:
    made = SUBGRAPHS[name]()
    feeds = [
        {"x": np.array([1.5, -2], "f")} | ({"c": np.array(c)} if len(made.graph.input) > 1 else {})
        for c in (True, False)
    ]
    for folded in (False, True):
        out = through(made, folded=folded)
        onnx.checker.check_model(out, full_check=True)
        assert_runs_alike(made, out, feeds)
    if name != "captures_of_what_is_merged":
        assert_same(made)


def test_a_name_inside_a_subgraph_makes_way() -> None:
    """A node outside that comes before the If must not have a name from inside it."""
    m = imported(names_that_come_again_outside())
    (x, _), (y,) = m.graph.inputs, m.graph.outputs
    old, u = y.inputs  # type: ignore[union-attr]
    inputs = tuple(u if v is x else v for v in old.inputs)  # the branches negate `u`, not `x`
    late = intern_node(old.op, inputs, old.attrs, old.types)
    new = Graph(m.graph.inputs, (node(OPS["Add"], [late, u]),))
    out = onnx_ir.to_proto(export_model(m, new))
    onnx.checker.check_model(out, full_check=True)
    assert [n.name for n in out.graph.node] == ["relu", "exp", "if", "add"]
    assert [n.output[0] for n in out.graph.node] == ["t", "u", "i", "y"]
    for c in (True, False):
        feeds = {"x": np.array([1.5, -2], "f"), "c": np.array(c)}
        np.testing.assert_array_equal(session(out).run(None, feeds)[0], [0, 0])
