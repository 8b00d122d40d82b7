"""Find the fp16 and bf16 values that must be rounded, because discontinuous operators depend on
them.

Models of these types are computed in float32 and their outputs are rounded
(plan/graph/promote_fp32.py); constants are computed in float64 (constant_folding.py). At a
discontinuity, one rounding more or less can change the result altogether, so there the model's own
arithmetic counts:

Floor(Mul(Add(a, b), c))    the results of Add and Mul are rounded
Sub(Add(s, 2048), 2048)     so is the result of Add: the bits that it absorbs are lost
Relu(Add(a, b))             nothing is rounded

The rule: each operand of a discontinuous operator is rounded to its type, and so is each value from
which it is computed elementwise, back to inputs, constants and operators that combine several
elements (matrix products, convolutions, means, Softmax), whose results are rounded, too.
Discontinuous operators are those of `DISCONTINUOUS_OPS`, Cast to an integer or a bool, operators
without a tensor expression, and a sum or difference whose operands have a common term that cancels.
"""

from __future__ import annotations

from collections.abc import Iterable

from superopt.ir import graph as ir_graph
from superopt.ir.constant_values import is_constant
from superopt.te.expr.dtype import BF16, F16
from superopt.te.expr.tensor import TensorType

NARROW_FLOATS = (F16, BF16)
DISCONTINUOUS_OPS = frozenset((
    "Floor", "Ceil", "Round", "Mod", "Sign", "Equal", "Less", "LessOrEqual", "Greater",
    "GreaterOrEqual", "IsInf", "IsNaN", "ArgMax", "ArgMin", "TopK", "Hardmax", "OneHot", "BitCast",
    "QuantizeLinear", "DynamicQuantizeLinear", "ThresholdedRelu", "Shrink", "GridSample",
))  # fmt: skip
# Operators that select elements of their operands, beside those whose law is "data".
MOVEMENT_OPS = frozenset((
    "Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND", "Pad", "Where", "Trilu",
    "ReverseSequence", "CenterCropPad", "Upsample", "ReduceMax", "ReduceMin", "MaxPool",
    "GlobalMaxPool", "TopK", "Max", "Min", "Clip", "Relu", "Abs", "Neg",
))  # fmt: skip
# Operators that reshape or permute; terms are tracked through them.
RESHAPE_OPS = frozenset((
    "Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Expand", "Tile",
))  # fmt: skip
SUM_OPS = frozenset(("Add", "Sub", "Sum", "Mean"))

Signs = frozenset[int]
Terms = dict[object, Signs]  # of a sum: each term with the signs with which it occurs
_CONSTANT_TERM = "number"  # all constant scalars are one term
_BOTH_SIGNS: Signs = frozenset((1, -1))


def rounding_sensitive_values(
    graph: ir_graph.Graph, outputs: Iterable[ir_graph.Value] = ()
) -> set[ir_graph.Value]:
    """Return the values that are rounded; empty if the graph has no fp16 and bf16.

    outputs: values of the graph on which discontinuous operators outside of it depend.
    """
    nodes = ir_graph.nodes(graph)
    if not any(is_narrow_float(t) for n in nodes for t in n.types):
        return set()
    sums = _SumTerms()
    todo = [
        v
        for n in nodes
        if is_discontinuous(n) or sums.has_cancellation(n)
        for v in n.inputs
        if v is not None
    ]
    todo += outputs
    found: set[ir_graph.Value] = set()
    while todo:
        v = todo.pop()
        if v in found or v.type.dtype is None or not v.type.dtype.is_float:
            continue
        found.add(v)
        n = ir_graph.producer(v)
        if n is not None and ("elementwise" in n.op.laws or is_data_movement(n)):
            todo += (i for i in n.inputs if i is not None)
    return {v for v in found if is_narrow_float(v.type)}


def is_narrow_float(t: TensorType) -> bool:
    return t.dtype in NARROW_FLOATS


def is_discontinuous(n: ir_graph.Node) -> bool:
    """True if the operator is discontinuous, or may be."""
    if n.op.name in ("Cast", "CastLike"):
        to = n.type.dtype
        return to is not None and not to.is_float
    return n.op.opaque or n.op.name in DISCONTINUOUS_OPS


def is_data_movement(n: ir_graph.Node) -> bool:
    """True if the results are rounded whenever the operands are."""
    computes = dict(n.attrs).get("reduction", "none") != "none"  # a scatter with a reduction
    return "data" in n.op.laws or (n.op.name in MOVEMENT_OPS and not computes)


class _SumTerms:
    """The terms of sums, memoized by value."""

    def __init__(self) -> None:
        self.terms_of: dict[ir_graph.Value, Terms] = {}
        self.constant: dict[ir_graph.Node, bool] = {}

    def has_cancellation(self, n: ir_graph.Node) -> bool:
        """True if a term occurs with opposite signs in two operands, or if two operands have
        constant terms."""
        if n.op.name not in SUM_OPS or not is_narrow_float(n.types[0]):
            return False
        seen: Terms = {}
        for v, sign in _signed_operands(n):
            for term, signs in self.terms(v).items():
                own = frozenset(sign * s for s in signs)
                if any(-s in own for s in seen.get(term, ())):
                    return True
                seen[term] = seen.get(term, frozenset()) | own
        return False

    def terms(self, v: ir_graph.Value) -> Terms:
        todo = [v]
        while todo:  # sums of residual networks are deeper than Python's stack
            x = todo[-1]
            n = ir_graph.producer(x)
            parts = [] if n is None or self.is_constant_scalar(x) else _signed_operands(n)
            missing = [p for p, _ in parts if p not in self.terms_of]
            if x in self.terms_of or not missing:
                self.terms_of.setdefault(todo.pop(), self.merge_terms(x, parts))
            todo += missing
        return self.terms_of[v]

    def merge_terms(self, v: ir_graph.Value, parts: Iterable[tuple[ir_graph.Value, int]]) -> Terms:
        if self.is_constant_scalar(v):
            return {_CONSTANT_TERM: _BOTH_SIGNS}
        out: Terms = {}
        for part, sign in parts:
            for term, signs in self.terms_of[part].items():
                out[term] = out.get(term, frozenset()) | {sign * s for s in signs}
        return out or {v: frozenset((1,))}

    def is_constant_scalar(self, v: ir_graph.Value) -> bool:
        shape = v.type.shape
        single = shape is not None and all(n == 1 for n in shape)
        return single and is_constant(v, self.constant)


def _signed_operands(n: ir_graph.Node) -> list[tuple[ir_graph.Value, int]]:
    """Return the values that a node adds up, each with its sign; an empty list if it is not a
    sum."""
    given = [v for v in n.inputs if v is not None]
    if n.op.name in SUM_OPS:
        return [(v, -1 if k and n.op.name == "Sub" else 1) for k, v in enumerate(given)]
    if n.op.name == "Neg":
        return [(given[0], -1)]
    return [(given[0], 1)] if n.op.name in RESHAPE_OPS else []
