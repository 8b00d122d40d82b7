"""Round the operands of a graph's products, as products in bfloat16 do, and those of MatMulNBits at
`accuracy_level` 4."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from superopt.ir.graph import Graph, Node, Value, constant, node, nodes
from superopt.ir.substitute import replace_all
from superopt.ops import OPS
from superopt.ops.quantized.nbits import INT8_LEVEL
from superopt.te.analysis.bind_sizes import bind_dim
from superopt.te.expr.dtype import F32, DType

LEAST_MAXIMUM, MAX_INT8 = 1e-35, 127
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


def round_int8_levels(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """Return the graph with the activations of MatMulNBits rounded to 8 bits in each block, where
    the node permits that (`accuracy_level` 4) and has more than one row at these sizes."""
    return replace_all(graph, {
        n: node(n.op, [_round_blocks(n), *n.inputs[1:]], **dict(n.attrs))
        for n in nodes(graph)
        if permits_int8_rows(n) and n.type.dtype == F32 and _row_count(n, sizes) != 1
    })  # fmt: skip


def permits_int8_rows(n: Node) -> bool:
    """True for a MatMulNBits node whose activations may be rounded to 8 bits."""
    return n.op.name == "MatMulNBits" and n.attr("accuracy_level") == INT8_LEVEL


def _row_count(n: Node, sizes: Mapping[str, int]) -> int:
    """Return the number of rows; of unknown sizes, as if they were 2."""
    assert n.type.shape is not None
    known = [bind_dim(d, sizes) for d in n.type.shape[:-1]]
    return prod(d if isinstance(d, int) else 2 for d in known)


def _round_blocks(n: Node) -> Value:
    """Return the activations of a MatMulNBits node in steps of 1/127 of each block's maximum."""
    x, size = n.inputs[0], n.attr("block_size")
    assert x is not None
    assert x.type.shape is not None
    assert isinstance(size, int)
    *lead, terms = x.type.shape
    assert isinstance(terms, int)
    pads, shape = (*(0,) * len(lead), -terms % size), (*lead, -(-terms // size), size)
    before = (0,) * len(pads)
    padded = node(OPS["Pad"], [x], pads=(*before, *pads)) if pads[-1] else x
    blocks = node(OPS["Reshape"], [padded], shape=shape)
    most = node(OPS["ReduceMax"], [node(OPS["Abs"], [blocks])], axes=(len(shape) - 1,), keepdims=1)
    least, top = (constant(np.array(c, np.float32)) for c in (LEAST_MAXIMUM, MAX_INT8))
    step = node(OPS["Div"], [node(OPS["Max"], [most, least]), top])
    whole = node(OPS["Round"], [node(OPS["Div"], [blocks, step])])
    out = node(OPS["Reshape"], [node(OPS["Mul"], [whole, step])], shape=(*lead, terms + pads[-1]))
    return node(OPS["Pad"], [out], pads=(*before, *(-p for p in pads))) if pads[-1] else out
