"""Segments of kernels, and of nodes in onnxruntime."""

import numpy as np
import pytest

from superopt.ir import graph as ir_graph
from superopt.ir.op import Op, Payload
from superopt.ops import OPS
from superopt.plan.graph.partition import partition
from superopt.te.expr.dtype import F32
from superopt.te.expr.tensor import TensorType

SECRET = Op("Secret", None, domain="acme")
MATRIX = TensorType(F32, (4, 4))
X = ir_graph.Input("x", MATRIX)
WEIGHTS = ir_graph.constant(np.arange(16, dtype=np.float32).reshape(4, 4))


def secret(x: ir_graph.Value) -> ir_graph.Node:
    return ir_graph.opaque_node(SECRET, [x], Payload(object(), "s"), (MATRIX,))


def transpose(x: ir_graph.Value) -> ir_graph.Node:
    return ir_graph.node(OPS["Transpose"], [x], perm=(1, 0))


def product(x: ir_graph.Value, y: ir_graph.Value) -> ir_graph.Node:
    return ir_graph.node(OPS["MatMul"], [x, y])


def is_native(n: ir_graph.Node) -> bool:
    return not n.op.opaque


@pytest.mark.parametrize("before", [False, True])
def test_what_constants_give_is_computed_where_it_is_read(before: bool) -> None:
    weights = transpose(WEIGHTS)
    first = product(X, weights) if before else X
    last = product(secret(first), weights)
    some = partition(ir_graph.Graph((X,), (last,)), is_native)
    names = [[n.op.name for n in s.nodes] for s in some]
    own = ["Transpose", "MatMul"]
    assert names == [*([own] if before else []), ["Secret"], own]
    assert len(some[-1].inputs) == 1  # no weights


def test_what_is_read_elsewhere_or_given_stays() -> None:
    """An output, and an operand of a node in onnxruntime."""
    weights = transpose(WEIGHTS)
    inner = product(secret(weights), weights)
    some = partition(ir_graph.Graph((X,), (inner, weights)), is_native)
    assert [[n.op.name for n in s.nodes] for s in some] == [["Transpose"], ["Secret"], ["MatMul"]]
    assert len(some[-1].inputs) == 2


def test_a_node_of_several_units_comes_before_what_reads_it() -> None:
    """Units of nodes that onnxruntime runs, as those of two QLinearAdds that dequantize one
    value."""
    shared = secret(X)
    one = secret(shared)
    between = secret(one)
    other = secret(between)
    last = ir_graph.node(OPS["Add"], [shared, other])
    units = {shared: {shared, one, last}, one: {shared, one}, last: {shared, last}}
    graph = ir_graph.Graph((X,), (last,))
    (only,) = partition(graph, lambda n: 0, units=units)
    assert [*only.nodes] == ir_graph.nodes(graph)
    assert only.inputs == (X,)
    some = partition(graph, lambda n: int(n is between), units=units)
    done: set[ir_graph.Value] = {X}
    for s in some:
        assert done.issuperset(s.inputs)
        done |= {*s.outputs}
