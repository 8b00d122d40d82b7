"""Batch products of rows that are known from the start with the same matrix into one GEMM.

An unrolled recurrent network (a NAS cell over five steps) multiplies the input of each step with
the same weights. A product of so few rows takes as long as reading the weights; one product of all
rows reads them once. Rows that depend on another product stay where they are, because they may
depend on one of these products.
"""

from __future__ import annotations

from math import prod

from superopt.ir import graph as g
from superopt.ir.substitute import replace_all
from superopt.ops import OPS

FEW = 8  # rows of a product that is bound by reading its matrix, at most
LARGE = 1 << 16  # elements of a matrix that exceeds the L1 cache
MOVED = frozenset((
    "Concat", "Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze",
    "Transpose", "Unsqueeze",
))  # fmt: skip


def together(graph: g.Graph) -> g.Graph:
    groups: dict[g.Value, list[g.Node]] = {}
    known: dict[g.Node, bool] = {}
    for n in g.nodes(graph):  # operands come first
        operands = [o for v in n.inputs if (o := _node(v)) is not None]
        known[n] = n.op.name in MOVED and n.op.domain == "" and all(known[o] for o in operands)
        if _product(n) and all(known[o] for o in operands):
            assert n.inputs[1] is not None
            groups.setdefault(n.inputs[1], []).append(n)
    change: dict[g.Value, g.Value] = {}
    for w, some in groups.items():
        if len(some) < 2:
            continue
        rows = g.node(OPS["Concat"], [n.inputs[0] for n in some], axis=0)
        made = g.node(OPS["MatMul"], [rows, w])
        begin = 0
        for n in some:
            end = begin + _rows(n)
            how = {"axes": (0,), "starts": (begin,), "ends": (end,), "steps": (1,)}
            change[g.results(n)[0]] = g.node(OPS["Slice"], [made], **how)
            begin = end
    return replace_all(graph, change) if change else graph


def _node(v: g.Value | None) -> g.Node | None:
    return v if isinstance(v, g.Node) else v.node if isinstance(v, g.Item) else None


def _product(n: g.Node) -> bool:
    """True for a product of few rows and a large constant matrix."""
    if n.op.name != "MatMul" or n.op.domain or not isinstance(n.inputs[1], g.Constant):
        return False
    (rows, *more), matrix = _shape(n.inputs[0]), _shape(n.inputs[1])
    return len(more) == 1 and 0 < rows <= FEW and len(matrix) == 2 and prod(matrix) >= LARGE


def _rows(n: g.Node) -> int:
    return _shape(n.inputs[0])[0]


def _shape(v: g.Value | None) -> tuple[int, ...]:
    """Return the sizes of a value; 0 where a size is unknown."""
    shape = (v.type.shape or ()) if v is not None else ()
    return tuple(d if isinstance(d, int) else 0 for d in shape) or (0,)
