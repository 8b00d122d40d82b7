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

from superopt.ir import graph as g
from superopt.ir.constancy import is_constant
from superopt.te.dtype import BF16, F16
from superopt.te.expr import TensorType

NARROW = (F16, BF16)
DECIDING = frozenset((
    "Floor", "Ceil", "Round", "Mod", "Sign", "Equal", "Less", "LessOrEqual", "Greater",
    "GreaterOrEqual", "IsInf", "IsNaN", "ArgMax", "ArgMin", "TopK", "Hardmax", "OneHot", "BitCast",
    "QuantizeLinear", "DynamicQuantizeLinear", "ThresholdedRelu", "Shrink", "GridSample",
))  # fmt: skip
# Operators that select elements of their operands, beside those whose law is "data".
MOVES = frozenset((
    "Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND", "Pad", "Where", "Trilu",
    "ReverseSequence", "CenterCropPad", "Upsample", "ReduceMax", "ReduceMin", "MaxPool",
    "GlobalMaxPool", "TopK", "Max", "Min", "Clip", "Relu", "Abs", "Neg",
))  # fmt: skip
# Operators that reshape or permute; terms are tracked through them.
RESHAPES = frozenset((
    "Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Expand", "Tile",
))  # fmt: skip
SUMS = frozenset(("Add", "Sub", "Sum", "Mean"))

_Signs = frozenset[int]
_Terms = dict[object, _Signs]  # of a sum: each term with the signs with which it occurs
_NUMBER = "number"  # all constant scalars are one term
_BOTH: _Signs = frozenset((1, -1))


def decisive_values(graph: g.Graph, outputs: Iterable[g.Value] = ()) -> set[g.Value]:
    """Return the values that are rounded; empty if the graph has no fp16 and bf16.

    outputs: values of the graph on which discontinuous operators outside of it depend.
    """
    nodes = g.nodes(graph)
    if not any(is_narrow(t) for n in nodes for t in n.types):
        return set()
    sums = _Sums()
    todo = [v for n in nodes if decides(n) or sums.cancels(n) for v in n.inputs if v is not None]
    todo += outputs
    found: set[g.Value] = set()
    while todo:
        v = todo.pop()
        if v in found or v.type.dtype is None or not v.type.dtype.is_float:
            continue
        found.add(v)
        n = g.producer(v)
        if n is not None and ("elementwise" in n.op.laws or moves(n)):
            todo += (i for i in n.inputs if i is not None)
    return {v for v in found if is_narrow(v.type)}


def is_narrow(t: TensorType) -> bool:
    return t.dtype in NARROW


def decides(n: g.Node) -> bool:
    """True if the operator is discontinuous, or may be."""
    if n.op.name in ("Cast", "CastLike"):
        to = n.type.dtype
        return to is not None and not to.is_float
    return n.op.opaque or n.op.name in DECIDING


def moves(n: g.Node) -> bool:
    """True if the results are rounded whenever the operands are."""
    computes = dict(n.attrs).get("reduction", "none") != "none"  # a scatter with a reduction
    return "data" in n.op.laws or (n.op.name in MOVES and not computes)


class _Sums:
    """The terms of sums, memoized by value."""

    def __init__(self) -> None:
        self.known: dict[g.Value, _Terms] = {}
        self.constant: dict[g.Node, bool] = {}

    def cancels(self, n: g.Node) -> bool:
        """True if a term occurs with opposite signs in two operands, or if two operands have
        constant terms."""
        if n.op.name not in SUMS or not is_narrow(n.types[0]):
            return False
        seen: _Terms = {}
        for v, sign in _operands(n):
            for term, signs in self.terms(v).items():
                own = frozenset(sign * s for s in signs)
                if any(-s in own for s in seen.get(term, ())):
                    return True
                seen[term] = seen.get(term, frozenset()) | own
        return False

    def terms(self, v: g.Value) -> _Terms:
        todo = [v]
        while todo:  # sums of residual networks are deeper than Python's stack
            x = todo[-1]
            n = g.producer(x)
            parts = [] if n is None or self.number(x) else _operands(n)
            missing = [p for p, _ in parts if p not in self.known]
            if x in self.known or not missing:
                self.known.setdefault(todo.pop(), self.joined(x, parts))
            todo += missing
        return self.known[v]

    def joined(self, v: g.Value, parts: Iterable[tuple[g.Value, int]]) -> _Terms:
        if self.number(v):
            return {_NUMBER: _BOTH}
        out: _Terms = {}
        for part, sign in parts:
            for term, signs in self.known[part].items():
                out[term] = out.get(term, frozenset()) | {sign * s for s in signs}
        return out or {v: frozenset((1,))}

    def number(self, v: g.Value) -> bool:
        shape = v.type.shape
        single = shape is not None and all(n == 1 for n in shape)
        return single and is_constant(v, self.constant)


def _operands(n: g.Node) -> list[tuple[g.Value, int]]:
    """Return the values that a node adds up, each with its sign; an empty list if it is not a
    sum."""
    given = [v for v in n.inputs if v is not None]
    if n.op.name in SUMS:
        return [(v, -1 if k and n.op.name == "Sub" else 1) for k, v in enumerate(given)]
    if n.op.name == "Neg":
        return [(given[0], -1)]
    return [(given[0], 1)] if n.op.name in RESHAPES else []
