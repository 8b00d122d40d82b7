"""Linear forms of a value: its scales, shifts and weights."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from superopt.ir import graph
from superopt.ir.op import Attr, InferError
from superopt.ops import OPS
from superopt.rules.lang.value_facts import is_const
from superopt.te.expr.node import Dim

MAX_FORMS = 6  # forms of a kind for one value


@dataclass(frozen=True, slots=True)
class Weight:
    """A constant factor of `root`. The axis `axis` of the weight, from the end, is the axis
    `result_axis` of the result, from the end; 0 if unknown."""

    root: graph.Value
    kind: str
    value: graph.Value
    axis: int
    result_axis: int
    heads: int = 1  # number of heads that split the last axis of the result


@dataclass(frozen=True, slots=True)
class Forms:
    """Scales and shifts that broadcast with a value; weights of the products before it; table: the
    index and the table of constants whose rows it is."""

    scales: tuple[graph.Value, ...] = ()
    shifts: tuple[graph.Value, ...] = ()
    weights: tuple[Weight, ...] = ()
    table: tuple[graph.Value, graph.Value] | None = None


@dataclass(slots=True)
class Pool:
    """All candidate expressions of constants, in order. max_elements: of one expression. known: the
    forms of values so far."""

    max_elements: int
    known: dict[graph.Value, Forms] = field(default_factory=dict)
    found: dict[graph.Value, None] = field(default_factory=dict)

    def make(self, op: str, *args: graph.Value | None, **attrs: Attr) -> graph.Value | None:
        if any(a is None or not is_const(a) for a in args):
            return None
        try:
            n = graph.node(OPS[op], args, **attrs)
        except InferError:
            return None
        if element_count(n) > self.max_elements:
            return None
        self.found[n] = None
        return n

    def sum_of(self, vs: Sequence[graph.Value]) -> graph.Value | None:
        """Return the sum of at least one value, from the left."""
        out: graph.Value | None = vs[0]
        for v in vs[1:]:
            out = self.make("Add", out, v)
        return out


def constant_bias(n: graph.Node) -> graph.Value | None:
    """Return the third operand of a Gemm or Conv; None if it is absent or not constant."""
    b = n.inputs[2] if len(n.inputs) > 2 else None
    return b if isinstance(b, graph.Constant) else None


def element_count(v: graph.Value) -> int:
    """Return the number of elements of a value of fixed shape."""
    return math.prod(fixed_shape(v))


def first_forms(vs: Iterable[graph.Value | None]) -> tuple[graph.Value, ...]:
    return tuple(dict.fromkeys(v for v in vs if v is not None))[:MAX_FORMS]


def first_weights(ws: Iterable[Weight | None]) -> tuple[Weight, ...]:
    return tuple(dict.fromkeys(w for w in ws if w is not None))[: 2 * MAX_FORMS]


def align(k: graph.Value, axis: int, result_axis: int) -> graph.Value | None:
    """Return `k`, which lies along axis `result_axis` (from the end) of a result, along `axis` of a
    weight."""
    shape = k.type.shape or ()
    if element_count(k) == 1:
        return reshape(k, ()) if shape else k
    if not axis or result_axis > len(shape) or shape[-result_axis] != element_count(k):
        return None
    return reshape(k, (shape[-result_axis], *(1 for _ in range(axis - 1))))


def reshape(v: graph.Value, shape: Sequence[Dim]) -> graph.Value:
    if v.type.shape == tuple(shape):
        return v
    return graph.node(OPS["Reshape"], [v], shape=tuple(shape))


def fixed_shape(v: graph.Value) -> list[int]:
    return [d for d in v.type.shape or () if isinstance(d, int)]
