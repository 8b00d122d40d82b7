"""Degrees of an element as a quotient of polynomials in the inputs.

A function that is not a sum, product or quotient counts as one more input. It may be compared with
another one, with the degree of its arguments.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from math import prod

from superopt.te.dtype import INDEX
from superopt.te.node import Apply, Axis, Const, Expr, Index, Load, Reduce
from superopt.te.walk import axes_of, operands, parts

_NONE = frozenset[Axis]()


@dataclass(frozen=True, slots=True)
class Degree:
    """Degrees of numerator and denominator, and the axes on which the denominator depends."""

    above: int = 0
    below: int = 0
    axes: frozenset[Axis] = _NONE


def chance_degree(a: Expr, b: Expr) -> int:
    """Return the degree of the polynomial that is 0 where two elements are equal, or where one
    divides by 0."""
    of = _Degrees(1, _NONE)
    x, y = of.of(a), of.of(b)
    return max(x.above + y.below, y.above + x.below) + x.below + y.below


def sums_degree(bodies: Sequence[Expr], over: Collection[Axis]) -> int:
    """Return at how many places of sums over these axes one term may read, in comparisons of two
    expressions or of function arguments."""
    of = _Degrees(0, frozenset(over))
    found = [*map(of.of, bodies), *of.compared]
    return max(d.above for d in found) + max(d.below for d in found)


@dataclass(slots=True)
class _Degrees:
    """load: degree of a loaded element. over: axes of which each sum counts 1. compared: degrees of
    function arguments. done: by ids of expressions, which are kept alive."""

    load: int
    over: frozenset[Axis]
    compared: list[Degree] = field(default_factory=list)
    done: dict[int, tuple[Expr, Degree]] = field(default_factory=dict)

    def of(self, e: Expr) -> Degree:
        if id(e) not in self.done:
            self.done[id(e)] = (e, self._of(e))
        return self.done[id(e)][1]

    def _of(self, e: Expr) -> Degree:
        match e:
            case Load(_, index):
                for x in (x for i in index for x in parts(i) if isinstance(x, Index)):
                    self.of(x.element)
                return Degree(self.load)
            case Reduce("sum" | "prod" as fn, axes, body):
                return self.total(fn, axes, body)
            case Apply("select", (guard, yes, no)):
                self.of(guard)
                return _either([self.of(yes), self.of(no)])
            case Apply("cast", (x,)) if x.dtype == INDEX or x.dtype.is_float == e.dtype.is_float:
                return self.of(x)
            case Apply("pow", (x, Const(n))) if n in range(1, 65):
                d = self.of(x)
                return Degree(d.above * int(n), d.below * int(n), d.axes)
            case Apply("div", (x, y)) if e.dtype.is_float:
                a, b = self.of(x), self.of(y)
                below = a.axes | (_hanging(y) if b.above else b.axes)
                return Degree(a.above + b.below, a.below + b.above, below)
            case Apply("mul", args):
                some = [self.of(x) for x in args]
                below = _NONE.union(*(d.axes for d in some))
                return Degree(sum(d.above for d in some), sum(d.below for d in some), below)
            case Apply("add" | "sub" | "neg", args) if args[0].dtype != INDEX:
                return _sum([self.of(x) for x in args])
            case Apply() | Reduce() if e.dtype != INDEX:
                some = [self.of(x) for x in operands(e) if x.dtype != INDEX]
                self.compared += some
                return Degree(max((d.above + d.below for d in some), default=0))
        return Degree()

    def total(self, fn: str, axes: Sequence[Axis], body: Expr) -> Degree:
        d = self.of(body)
        own = sum(a in self.over for a in axes)
        count = prod(a.extent for a in axes if isinstance(a.extent, int))
        if fn == "prod":
            return Degree(d.above * count, d.below * count, d.axes)
        if d.axes.isdisjoint(axes):  # a line under the whole sum
            return Degree(d.above + own, d.below, d.axes)
        return Degree(d.above + own + (count - 1) * d.below, count * d.below, d.axes)


def _either(some: Sequence[Degree]) -> Degree:
    axes = _NONE.union(*(d.axes for d in some))
    return Degree(max(d.above for d in some), max(d.below for d in some), axes)


def _sum(some: Sequence[Degree]) -> Degree:
    below = sum(d.below for d in some)
    axes = _NONE.union(*(d.axes for d in some))
    return Degree(max(d.above + below - d.below for d in some), below, axes)


def _hanging(e: Expr) -> frozenset[Axis]:
    return _NONE.union(*(axes_of(x) for x in parts(e) if isinstance(x, Axis)))
