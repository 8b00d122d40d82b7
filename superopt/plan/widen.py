"""Promote fp16 and bf16 arithmetic to float32; round outputs and rounding-sensitive values.

Runtimes do this on processors without arithmetic for these types. Products are then float32
products, which may use Winograd and Strassen. No intermediate result is rounded except the
rounding-sensitive values (ir/rounding_sensitive.py). With the float class E1 each operator rounds
instead.
"""

from __future__ import annotations

from collections.abc import Collection

from superopt.ir import graph as g
from superopt.ir.decisions import NARROW, decisive_values, is_narrow, moves
from superopt.ir.op import InferError
from superopt.ops import OPS
from superopt.te.dtype import F32, DType
from superopt.te.expr import TensorType

# Operators that read the bits of a number or test whether it overflows.
EXACT = frozenset(("Cast", "CastLike", "BitCast", "QuantizeLinear", "IsInf", "IsNaN"))


def widened(graph: g.Graph, decided: Collection[int] = ()) -> g.Graph:
    """Return the graph with float32 arithmetic and unchanged input and output types. Casts to a
    narrow type still round.

    sensitive_outputs: the indices of outputs on which discontinuous operators outside of the graph
    depend.
    """
    if not any(is_narrow(t) for n in g.nodes(graph) for t in n.types):
        return graph
    decisive = decisive_values(graph, [graph.outputs[k] for k in decided])
    done: dict[g.Value, g.Value] = {}

    def of(v: g.Value) -> g.Value:
        if v not in done:  # an input or a constant
            done[v] = _cast(v, F32) if is_narrow(v.type) else v
        return done[v]

    for n in g.nodes(graph):
        inputs = tuple(None if v is None else of(v) for v in n.inputs)
        for v, made in zip(g.results(n), _computed(n, inputs), strict=True):
            exact = (
                v not in decisive
                or not is_narrow(v.type)
                or moves(n)
                or _narrow_source(made) is not None
            )
            done[v] = made if exact else _cast(_as_declared(made, v), F32)
    outputs = [_as_declared(of(v), v) for v in graph.outputs]
    return g.Graph(graph.inputs, tuple(outputs))


def _computed(n: g.Node, inputs: tuple[g.Value | None, ...]) -> list[g.Value]:
    narrow = [v is not None and is_narrow(v.type) for v in n.inputs]
    if not any(narrow) and not any(map(is_narrow, n.types)):
        return [*g.results(g.intern_node(n.op, inputs, n.attrs, n.types))]
    first = inputs[0] if inputs else None
    if n.op.name == "Cast" and narrow[0] and n.type.dtype == F32 and first is not None:
        return [first]
    if n.op.name not in EXACT and not n.op.opaque:
        wanted = tuple(TensorType(F32, t.shape) if is_narrow(t) else t for t in n.types)
        try:
            made = g.node(n.op, inputs, **dict(n.attrs))
        except InferError:
            pass
        else:
            if made.types == wanted:
                return [*g.results(made)]
    given = [
        x if x is None or v is None else _as_declared(x, v)
        for v, x in zip(n.inputs, inputs, strict=True)
    ]
    own = g.results(g.intern_node(n.op, tuple(given), n.attrs, n.types))
    return [_cast(v, F32) if is_narrow(v.type) else v for v in own]


def _as_declared(v: g.Value, original: g.Value) -> g.Value:
    """Return a value that stands for `original`, rounded to its element type where that is
    narrow."""
    to = original.type.dtype
    if to not in NARROW or v.type.dtype == to:
        return v
    of = _narrow_source(v)
    return of if of is not None and of.type.dtype == to else _cast(v, to)


def _narrow_source(v: g.Value) -> g.Value | None:
    """Return the narrow float that a float32 value is a cast of; None where it is no such cast."""
    n = g.producer(v)
    of = n.inputs[0] if n is not None and n.op.name == "Cast" else None
    return of if of is not None and is_narrow(of.type) else None


def _cast(v: g.Value, to: DType) -> g.Value:
    return g.node(OPS["Cast"], [v], to=to)
