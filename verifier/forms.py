"""Linear forms of a value: its scales, shifts and weights."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from superopt.ir import graph as g
from superopt.ir.op import Attr, InferError
from superopt.ops import OPS
from superopt.rules.facts import is_const
from superopt.te.node import Dim

MOST = 6  # forms of a kind for one value


@dataclass(frozen=True, slots=True)
class Weight:
    """A constant factor of `root`. The axis `axis` of the weight, from the end, is the axis
    `result_axis` of the result, from the end; 0 if unknown."""

    root: g.Value
    kind: str
    value: g.Value
    axis: int
    of: int
    heads: int = 1  # number of heads that split the last axis of the result


@dataclass(frozen=True, slots=True)
class Forms:
    """Scales and shifts that broadcast with a value; weights of the products before it; table: the
    index and the table of constants whose rows it is."""

    scales: tuple[g.Value, ...] = ()
    shifts: tuple[g.Value, ...] = ()
    weights: tuple[Weight, ...] = ()
    table: tuple[g.Value, g.Value] | None = None


@dataclass(slots=True)
class Pool:
    """All candidate expressions of constants, in order. max_elements: of one expression. known: the
    forms of values so far."""

    most: int
    known: dict[g.Value, Forms] = field(default_factory=dict)
    found: dict[g.Value, None] = field(default_factory=dict)

    def made(self, op: str, *args: g.Value | None, **attrs: Attr) -> g.Value | None:
        if any(a is None or not is_const(a) for a in args):
            return None
        try:
            n = g.node(OPS[op], args, **attrs)
        except InferError:
            return None
        if count(n) > self.most:
            return None
        self.found[n] = None
        return n

    def sum(self, vs: Sequence[g.Value]) -> g.Value | None:
        """Return the sum of at least one value, from the left."""
        out: g.Value | None = vs[0]
        for v in vs[1:]:
            out = self.made("Add", out, v)
        return out


def constant_bias(n: g.Node) -> g.Value | None:
    """Return the third operand of a Gemm or Conv; None if it is absent or not constant."""
    b = n.inputs[2] if len(n.inputs) > 2 else None
    return b if isinstance(b, g.Constant) else None


def count(v: g.Value) -> int:
    """Return the number of elements of a value of fixed shape."""
    return math.prod(sizes_of(v))


def few(vs: Iterable[g.Value | None]) -> tuple[g.Value, ...]:
    return tuple(dict.fromkeys(v for v in vs if v is not None))[:MOST]


def weights_of(ws: Iterable[Weight | None]) -> tuple[Weight, ...]:
    return tuple(dict.fromkeys(w for w in ws if w is not None))[: 2 * MOST]


def aligned(k: g.Value, axis: int, of: int) -> g.Value | None:
    """Return `k`, which lies along axis `result_axis` (from the end) of a result, along `axis` of a
    weight."""
    shape = k.type.shape or ()
    if count(k) == 1:
        return reshaped(k, ()) if shape else k
    if not axis or of > len(shape) or shape[-of] != count(k):
        return None
    return reshaped(k, (shape[-of], *(1 for _ in range(axis - 1))))


def reshaped(v: g.Value, shape: Sequence[Dim]) -> g.Value:
    if v.type.shape == tuple(shape):
        return v
    return g.node(OPS["Reshape"], [v], shape=tuple(shape))


def sizes_of(v: g.Value) -> list[int]:
    return [d for d in v.type.shape or () if isinstance(d, int)]
