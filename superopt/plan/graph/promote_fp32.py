"""Promote fp16 and bf16 arithmetic to float32; round outputs and rounding-sensitive values.

Runtimes do this on processors without arithmetic for these types. Products are then float32
products, which may use Winograd and Strassen. No intermediate result is rounded except the
rounding-sensitive values (ir/rounding_sensitive.py). With the float class E1 each operator rounds
instead.
"""

from __future__ import annotations

from collections.abc import Collection

from superopt.ir import graph as ir_graph
from superopt.ir.op import InferError
from superopt.ir.rounding_sensitive import (
    NARROW_FLOATS,
    is_data_movement,
    is_narrow_float,
    rounding_sensitive_values,
)
from superopt.ops import OPS
from superopt.te.expr.dtype import F32, DType
from superopt.te.expr.tensor import TensorType

# Operators that read the bits of a number or test whether it overflows.
BIT_EXACT_OPS = frozenset(("Cast", "CastLike", "BitCast", "QuantizeLinear", "IsInf", "IsNaN"))


def promote_to_fp32(
    graph: ir_graph.Graph, sensitive_outputs: Collection[int] = ()
) -> ir_graph.Graph:
    """Return the graph with float32 arithmetic and unchanged input and output types. Casts to a
    narrow type still round.

    sensitive_outputs: the indices of outputs on which discontinuous operators outside of the graph
    depend.
    """
    if not any(is_narrow_float(t) for n in ir_graph.nodes(graph) for t in n.types):
        return graph
    decisive = rounding_sensitive_values(graph, [graph.outputs[k] for k in sensitive_outputs])
    done: dict[ir_graph.Value, ir_graph.Value] = {}

    def of(v: ir_graph.Value) -> ir_graph.Value:
        if v not in done:  # an input or a constant
            done[v] = _cast(v, F32) if is_narrow_float(v.type) else v
        return done[v]

    for n in ir_graph.nodes(graph):
        inputs = tuple(None if v is None else of(v) for v in n.inputs)
        for v, made in zip(ir_graph.results(n), _promote_node(n, inputs), strict=True):
            exact = (
                v not in decisive
                or not is_narrow_float(v.type)
                or is_data_movement(n)
                or _narrow_source(made) is not None
            )
            done[v] = made if exact else _cast(_cast_as_declared(made, v), F32)
    outputs = [_cast_as_declared(of(v), v) for v in graph.outputs]
    return ir_graph.Graph(graph.inputs, tuple(outputs))


def _promote_node(
    n: ir_graph.Node, inputs: tuple[ir_graph.Value | None, ...]
) -> list[ir_graph.Value]:
    narrow = [v is not None and is_narrow_float(v.type) for v in n.inputs]
    if not any(narrow) and not any(map(is_narrow_float, n.types)):
        return [*ir_graph.results(ir_graph.intern_node(n.op, inputs, n.attrs, n.types))]
    first = inputs[0] if inputs else None
    if n.op.name == "Cast" and narrow[0] and n.type.dtype == F32 and first is not None:
        return [first]
    if n.op.name not in BIT_EXACT_OPS and not n.op.opaque:
        wanted = tuple(TensorType(F32, t.shape) if is_narrow_float(t) else t for t in n.types)
        try:
            made = ir_graph.node(n.op, inputs, **dict(n.attrs))
        except InferError:
            pass
        else:
            if made.types == wanted:
                return [*ir_graph.results(made)]
    given = [
        x if x is None or v is None else _cast_as_declared(x, v)
        for v, x in zip(n.inputs, inputs, strict=True)
    ]
    own = ir_graph.results(ir_graph.intern_node(n.op, tuple(given), n.attrs, n.types))
    return [_cast(v, F32) if is_narrow_float(v.type) else v for v in own]


def _cast_as_declared(v: ir_graph.Value, original: ir_graph.Value) -> ir_graph.Value:
    """Return a value that stands for `original`, rounded to its element type where that is
    narrow."""
    to = original.type.dtype
    if to not in NARROW_FLOATS or v.type.dtype == to:
        return v
    of = _narrow_source(v)
    return of if of is not None and of.type.dtype == to else _cast(v, to)


def _narrow_source(v: ir_graph.Value) -> ir_graph.Value | None:
    """Return the narrow float that a float32 value is a cast of; None where it is no such cast."""
    n = ir_graph.producer(v)
    of = n.inputs[0] if n is not None and n.op.name == "Cast" else None
    return of if of is not None and is_narrow_float(of.type) else None


def _cast(v: ir_graph.Value, dtype: DType) -> ir_graph.Value:
    return ir_graph.node(OPS["Cast"], [v], to=dtype)
