"""A graph at given sizes has numbers for symbolic sizes, in types and attributes."""

import pytest

from superopt.ir import graph
from superopt.ir.concrete_graph import concrete_graph
from superopt.ops import OPS
from superopt.te.expr import index
from superopt.te.expr.dtype import F32
from superopt.te.expr.node import Size
from superopt.te.expr.tensor import TensorType


def example() -> graph.Graph:
    n = Size("n")
    x = graph.Input("x", TensorType(F32, (n, 4)))
    flat = graph.node(OPS["Reshape"], [x], shape=(index.dim(index.as_index(n) * 4),))
    return graph.Graph((x,), (graph.node(OPS["Relu"], [flat]),))


def test_sizes_in_types_and_attributes_become_numbers() -> None:
    made = concrete_graph(example(), {"n": 3})
    assert [str(i.type) for i in made.inputs] == ["f32[3, 4]"]
    reshape, relu = graph.nodes(made)
    assert reshape.attr("shape") == (12,)
    assert str(relu.type) == "f32[12]"


def test_a_graph_without_symbols_is_the_same() -> None:
    made = concrete_graph(example(), {"n": 3})
    assert concrete_graph(made, {}).outputs == made.outputs


def test_a_size_without_a_value_is_named() -> None:
    with pytest.raises((KeyError, ValueError), match="n"):
        concrete_graph(example(), {"m": 3})
