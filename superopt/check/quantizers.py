"""The nodes of a graph that round to integers, and the grids to which they round."""

from __future__ import annotations

import numpy as np

from superopt.ir import graph as ir_graph
from superopt.ir.constant_values import is_constant
from superopt.ir.evaluate import evaluate
from superopt.te.eval.domain import Reals
from superopt.te.expr.dtype import F64

QUANTIZERS = frozenset(("QuantizeLinear", "DynamicQuantizeLinear"))


def is_quantizer(n: ir_graph.Node) -> bool:
    """True if the node rounds floats or sums to integers of at most 16 bits, as QLinearConv
    does."""
    return n.op.name in QUANTIZERS or n.op.title.startswith("QLinear") or n.op.title == "QGemm"


def depends_on_quantizer(v: ir_graph.Value) -> bool:
    """True if a value is computed from results of quantization."""
    constant: dict[ir_graph.Node, bool] = {}
    return any(
        is_quantizer(n) and not all(is_constant(r, constant) for r in ir_graph.results(n))
        for n in ir_graph.nodes([v])
    )


def constant_array(v: ir_graph.Value | None) -> np.ndarray | None:
    """Return the elements of a constant value, in float64 if it is of floats; None for others."""
    if v is None or not is_constant(v, {}):
        return None
    (array,) = evaluate(ir_graph.Graph((), (v,)), {}, Reals(F64))
    return np.asarray(array)


Grid = tuple[str, bytes, bytes]  # the type, scales and zero points of a quantization


def quantization_grids(graph: ir_graph.Graph) -> frozenset[Grid] | None:
    """Return the grids to which a graph's QuantizeLinear and QLinear nodes with constant scales
    round; None if an operator is not known well enough to tell."""
    found: set[Grid] = set()
    constant: dict[ir_graph.Node, bool] = {}
    for n in ir_graph.nodes(graph):
        if not is_quantizer(n) or n.op.name == "DynamicQuantizeLinear":
            continue
        if all(is_constant(r, constant) for r in ir_graph.results(n)):
            continue
        if n.op.name not in ("QuantizeLinear", "QLinearConv", "QLinearMatMul"):
            return None
        first = 1 if n.op.name == "QuantizeLinear" else 6
        scale, zero = (constant_array(v) for v in (*n.inputs, None)[first : first + 2])
        if scale is None:
            continue
        rounded = np.asarray([float(f"{s:.6g}") for s in scale.reshape(-1)])
        zeros = np.zeros(1) if zero is None else zero.reshape(-1).astype(np.float64)
        found.add((str(n.type.dtype), np.unique(rounded).tobytes(), np.unique(zeros).tobytes()))
    return frozenset(found)
