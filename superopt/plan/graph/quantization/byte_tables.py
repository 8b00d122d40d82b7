"""Functions of one 8-bit value, as tables of all its 256 values.

    v = DequantizeLinear(q, s, z)
    QuantizeLinear(Mul(v, DequantizeLinear(QuantizeLinear(Sigmoid(v)))))  =>  Gather(table, Cast(q))

and likewise for every elementwise function of q and numbers that ends in 8 bits. The table is
computed in float64, so that results differ from those of float32 by at most one step, where these
are near a tie. An int8 q is an index from the end of the table if it is negative.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from superopt.ir import graph as ir_graph
from superopt.ir.evaluate import evaluate
from superopt.ir.substitute import replace_all
from superopt.plan.graph.quantization.nodes import Value, constant_number, make_node
from superopt.te.expr.dtype import I8, I32, U8, to_numpy
from superopt.te.expr.tensor import TensorType

BYTES = (I8, U8)
TABLE_SIZE = 256
# What a vector computes in an instruction or two, beside a number.
CHEAP_OPS = frozenset((
    "Identity", "Neg", "Abs", "Add", "Sub", "Mul", "Div", "Min", "Max", "Clip", "Relu", "Cast",
    "DequantizeLinear",
))  # fmt: skip
MIN_COST = 2  # of a function: each rounding to 8 bits costs 1, what is not cheap 2


@dataclass(frozen=True, slots=True)
class _Function:
    """A function of a value of 8 bits."""

    source: Value
    cost: int


def tabulate_functions(graph: ir_graph.Graph) -> ir_graph.Graph:
    """Return the graph with tables as above, where these cost less than the function."""
    found: dict[Value, _Function] = {}
    change: dict[Value, Value] = {}
    for n in ir_graph.nodes(graph):
        if (made := _match_function(n, found)) is None:
            continue
        found[n] = made
        if n.type.dtype in BYTES and made.cost >= MIN_COST:
            table = _tabulate(n, made.source)
            index = make_node("Cast", [made.source], to=I32)
            change[n] = make_node("Gather", [ir_graph.constant(table), index], axis=0)
    return replace_all(graph, change) if change else graph


def _match_function(n: ir_graph.Node, found: Mapping[Value, _Function]) -> _Function | None:
    """Return the function that an elementwise operator's result is; None for another operator.
    found: those of values before it."""
    quantizes = n.op.name in ("QuantizeLinear", "DequantizeLinear") and not n.attr("block_size")
    if n.op.domain or len(n.types) > 1 or not (quantizes or "elementwise" in n.op.laws):
        return None
    variable = [v for v in n.inputs if v is not None and constant_number(v) is None]
    before = [found.get(v) or (_Function(v, 0) if _is_bytes(v) else None) for v in variable]
    some = [f for f in before if f is not None]
    if not some or len(some) < len(before) or any(f.source != some[0].source for f in some):
        return None
    if n.type.shape is None or n.type.shape != some[0].source.type.shape:
        return None
    cost = max(f.cost for f in some)
    if n.op.name == "QuantizeLinear":
        cost += 1
    elif n.op.name not in CHEAP_OPS or len(variable) > 1:
        cost += 2
    return _Function(some[0].source, cost)


def _is_bytes(v: Value) -> bool:
    return v.type.dtype in BYTES and not isinstance(v, ir_graph.Constant)


def _tabulate(n: ir_graph.Node, source: Value) -> np.ndarray:
    """Return a node's values for all bytes that `source` may have."""
    assert source.type.dtype is not None
    rank = len(source.type.shape or ())
    shape = (TABLE_SIZE, *(1,) * (rank - 1))
    given = ir_graph.Input("x", TensorType(source.type.dtype, shape))
    made: dict[Value, Value] = {source: given}
    todo: list[Value] = [n]
    while todo:
        v = todo[-1]
        own = ir_graph.producer(v)
        if v in made or own is None:
            made.setdefault(v, v)
            todo.pop()
            continue
        waiting = [i for i in own.inputs if i is not None and i not in made]
        todo += waiting
        if not waiting:
            inputs = [None if i is None else made[i] for i in own.inputs]
            made[v] = ir_graph.node(own.op, inputs, **dict(own.attrs))
    every = np.arange(TABLE_SIZE, dtype=np.uint8).view(to_numpy(source.type.dtype)).reshape(shape)
    with np.errstate(all="ignore"):
        (table,) = evaluate(ir_graph.Graph((given,), (made[n],)), {"x": every})
    assert n.type.dtype is not None
    return table.astype(to_numpy(n.type.dtype)).reshape(TABLE_SIZE)
