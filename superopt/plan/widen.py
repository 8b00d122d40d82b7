"""float16 and bfloat16 computed in float32 throughout, and rounded where they leave: as runtimes do
on processors without arithmetic for them. Products are then those of float32, in tiles and parts,
and nothing is rounded in between. Comparisons and whole parts are then of what is not rounded, as
onnxruntime has it, too; with the float class E1 each operator rounds."""

from __future__ import annotations

from superopt.ir import graph as g
from superopt.ir.op import InferError
from superopt.ops import OPS
from superopt.te.dtype import BF16, F16, F32, DType
from superopt.te.expr import TensorType

NARROW = (F16, BF16)
# What asks for a number's bits, or whether it is beyond what these hold.
EXACT = frozenset(("Cast", "CastLike", "BitCast", "QuantizeLinear", "IsInf", "IsNaN"))


def widened(graph: g.Graph) -> g.Graph:
    """The graph, whose inputs and outputs are as before. What is cast to such a type is rounded."""
    if not any(_narrow(t) for n in g.nodes(graph) for t in n.types):
        return graph
    done: dict[g.Value, g.Value] = {}

    def of(v: g.Value) -> g.Value:
        if v not in done:  # an input, or a constant
            done[v] = _cast(v, F32) if _narrow(v.type) else v
        return done[v]

    for n in g.nodes(graph):
        inputs = tuple(None if v is None else of(v) for v in n.inputs)
        made = _computed(n, inputs)
        done |= zip(g.results(n), made, strict=True)
    outputs = [
        _cast(of(v), v.type.dtype) if v.type.dtype in NARROW else of(v) for v in graph.outputs
    ]
    return g.Graph(graph.inputs, tuple(outputs))


def _computed(n: g.Node, inputs: tuple[g.Value | None, ...]) -> list[g.Value]:
    narrow = [v is not None and _narrow(v.type) for v in n.inputs]
    if not any(narrow) and not any(map(_narrow, n.types)):
        return [*g.results(g.intern_node(n.op, inputs, n.attrs, n.types))]
    first = inputs[0] if inputs else None
    if n.op.name == "Cast" and narrow[0] and n.type.dtype == F32 and first is not None:
        return [first]
    if n.op.name not in EXACT and not n.op.opaque:
        wanted = tuple(TensorType(F32, t.shape) if _narrow(t) else t for t in n.types)
        try:
            made = g.node(n.op, inputs, **dict(n.attrs))
        except InferError:
            pass
        else:
            if made.types == wanted:
                return [*g.results(made)]
    given = [
        _cast(x, v.type.dtype) if x is not None and v is not None and v.type.dtype in NARROW else x
        for v, x in zip(n.inputs, inputs, strict=True)
    ]
    own = g.results(g.intern_node(n.op, tuple(given), n.attrs, n.types))
    return [_cast(v, F32) if _narrow(v.type) else v for v in own]


def _narrow(t: TensorType) -> bool:
    return t.dtype in NARROW


def _cast(v: g.Value, to: DType | None) -> g.Value:
    return g.node(OPS["Cast"], [v], to=to)
