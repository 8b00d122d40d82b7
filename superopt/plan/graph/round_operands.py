"""Round the operands of a graph's products, as products in bfloat16 do."""

from __future__ import annotations

from superopt.ir.graph import Graph, Value, node, nodes
from superopt.ir.substitute import replace_all
from superopt.ops import OPS
from superopt.te.expr.dtype import F32, DType

PRODUCT_OPS = frozenset(("Conv", "Gemm", "MatMul"))


def round_operands(graph: Graph, dtype: DType) -> Graph:
    """Return the graph with the operands of products of float32 rounded to `dtype`."""

    def round_value(v: Value | None) -> Value:
        assert v is not None
        return node(OPS["Cast"], [node(OPS["Cast"], [v], to=dtype)], to=F32)

    return replace_all(graph, {
        n: node(n.op, [*map(round_value, n.inputs[:2]), *n.inputs[2:]], **dict(n.attrs))
        for n in nodes(graph)
        if n.op.name in PRODUCT_OPS and n.type.dtype == F32
    })  # fmt: skip
