"""Batch products of rows that are known from the start with the same matrix into one GEMM.

An unrolled recurrent network (a NAS cell over five steps) multiplies the input of each step with
the same weights. A product of so few rows takes as long as reading the weights; one product of all
rows reads them once. Rows that depend on another product stay where they are, because they may
depend on one of these products.
"""

from __future__ import annotations

from math import prod

from superopt.ir import graph as ir_graph
from superopt.ir.substitute import replace_all
from superopt.ops import OPS

MAX_GEMV_ROWS = 8  # rows of a product that is bound by reading its matrix, at most
MIN_MATRIX_ELEMENTS = 1 << 16  # elements of a matrix that exceeds the L1 cache
MOVEMENT_OPS = frozenset((
    "Concat", "Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze",
    "Transpose", "Unsqueeze",
))  # fmt: skip


def batch_gemms(graph: ir_graph.Graph) -> ir_graph.Graph:
    groups: dict[ir_graph.Value, list[ir_graph.Node]] = {}
    known: dict[ir_graph.Node, bool] = {}
    for n in ir_graph.nodes(graph):  # operands come first
        operands = [o for v in n.inputs if (o := _producer(v)) is not None]
        known[n] = (
            n.op.name in MOVEMENT_OPS and n.op.domain == "" and all(known[o] for o in operands)
        )
        if _is_gemv(n) and all(known[o] for o in operands):
            assert n.inputs[1] is not None
            groups.setdefault(n.inputs[1], []).append(n)
    change: dict[ir_graph.Value, ir_graph.Value] = {}
    for w, some in groups.items():
        if len(some) < 2:
            continue
        rows = ir_graph.node(OPS["Concat"], [n.inputs[0] for n in some], axis=0)
        made = ir_graph.node(OPS["MatMul"], [rows, w])
        begin = 0
        for n in some:
            end = begin + _row_count(n)
            how = {"axes": (0,), "starts": (begin,), "ends": (end,), "steps": (1,)}
            change[ir_graph.results(n)[0]] = ir_graph.node(OPS["Slice"], [made], **how)
            begin = end
    return replace_all(graph, change) if change else graph


def _producer(v: ir_graph.Value | None) -> ir_graph.Node | None:
    return v if isinstance(v, ir_graph.Node) else v.node if isinstance(v, ir_graph.Item) else None


def _is_gemv(n: ir_graph.Node) -> bool:
    """True for a product of few rows and a large constant matrix."""
    if n.op.name != "MatMul" or n.op.domain or not isinstance(n.inputs[1], ir_graph.Constant):
        return False
    (rows, *more), matrix = _static_shape(n.inputs[0]), _static_shape(n.inputs[1])
    return (
        len(more) == 1
        and 0 < rows <= MAX_GEMV_ROWS
        and len(matrix) == 2
        and prod(matrix) >= MIN_MATRIX_ELEMENTS
    )


def _row_count(n: ir_graph.Node) -> int:
    return _static_shape(n.inputs[0])[0]


def _static_shape(v: ir_graph.Value | None) -> tuple[int, ...]:
    """Return the sizes of a value; 0 where a size is unknown."""
    shape = (v.type.shape or ()) if v is not None else ()
    return tuple(d if isinstance(d, int) else 0 for d in shape) or (0,)
