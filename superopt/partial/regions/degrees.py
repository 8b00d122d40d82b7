"""Degrees of an element as a quotient of polynomials in the inputs.

A function that is not a sum, product or quotient counts as one more input. It may be compared with
another one, with the degree of its arguments.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from math import prod

from superopt.te.analysis.walk import index_axes, operands, subexpressions
from superopt.te.expr.dtype import INDEX
from superopt.te.expr.node import Apply, Axis, Const, Expr, Index, Load, Reduce

_NO_AXES = frozenset[Axis]()


@dataclass(frozen=True, slots=True)
class Degree:
    """Degrees of numerator and denominator, and the axes on which the denominator depends."""

    numerator: int = 0
    denominator: int = 0
    axes: frozenset[Axis] = _NO_AXES


def chance_degree(a: Expr, b: Expr) -> int:
    """Return the degree of the polynomial that is 0 where two elements are equal, or where one
    divides by 0."""
    of = _Degrees(1, _NO_AXES)
    x, y = of.degree(a), of.degree(b)
    return (
        max(x.numerator + y.denominator, y.numerator + x.denominator)
        + x.denominator
        + y.denominator
    )


def sum_degree(bodies: Sequence[Expr], over: Collection[Axis]) -> int:
    """Return at how many places of sums over these axes one term may read, in comparisons of two
    expressions or of function arguments."""
    of = _Degrees(0, frozenset(over))
    found = [*map(of.degree, bodies), *of.compared]
    return max(d.numerator for d in found) + max(d.denominator for d in found)


@dataclass(slots=True)
class _Degrees:
    """load: degree of a loaded element. over: axes of which each sum counts 1. compared: degrees of
    function arguments. done: by ids of expressions, which are kept alive."""

    load_degree: int
    summed_axes: frozenset[Axis]
    compared: list[Degree] = field(default_factory=list)
    done: dict[int, tuple[Expr, Degree]] = field(default_factory=dict)

    def degree(self, e: Expr) -> Degree:
        if id(e) not in self.done:
            self.done[id(e)] = (e, self._degree(e))
        return self.done[id(e)][1]

    def _degree(self, e: Expr) -> Degree:
        match e:
            case Load(_, index):
                for x in (x for i in index for x in subexpressions(i) if isinstance(x, Index)):
                    self.degree(x.element)
                return Degree(self.load_degree)
            case Reduce("sum" | "prod" as fn, axes, body):
                return self.reduction_degree(fn, axes, body)
            case Apply("select", (guard, yes, no)):
                self.degree(guard)
                return _max_degree([self.degree(yes), self.degree(no)])
            case Apply("cast", (x,)) if x.dtype == INDEX or x.dtype.is_float == e.dtype.is_float:
                return self.degree(x)
            case Apply("pow", (x, Const(n))) if n in range(1, 65):
                d = self.degree(x)
                return Degree(d.numerator * int(n), d.denominator * int(n), d.axes)
            case Apply("div", (x, y)) if e.dtype.is_float:
                a, b = self.degree(x), self.degree(y)
                below = a.axes | (_axes_read(y) if b.numerator else b.axes)
                return Degree(a.numerator + b.denominator, a.denominator + b.numerator, below)
            case Apply("mul", args):
                some = [self.degree(x) for x in args]
                below = _NO_AXES.union(*(d.axes for d in some))
                return Degree(
                    sum(d.numerator for d in some), sum(d.denominator for d in some), below
                )
            case Apply("add" | "sub" | "neg", args) if args[0].dtype != INDEX:
                return _sum_of_degrees([self.degree(x) for x in args])
            case Apply() | Reduce() if e.dtype != INDEX:
                some = [self.degree(x) for x in operands(e) if x.dtype != INDEX]
                self.compared += some
                return Degree(max((d.numerator + d.denominator for d in some), default=0))
        return Degree()

    def reduction_degree(self, fn: str, axes: Sequence[Axis], body: Expr) -> Degree:
        d = self.degree(body)
        own = sum(a in self.summed_axes for a in axes)
        count = prod(a.extent for a in axes if isinstance(a.extent, int))
        if fn == "prod":
            return Degree(d.numerator * count, d.denominator * count, d.axes)
        if d.axes.isdisjoint(axes):  # a line under the whole sum
            return Degree(d.numerator + own, d.denominator, d.axes)
        return Degree(
            d.numerator + own + (count - 1) * d.denominator, count * d.denominator, d.axes
        )


def _max_degree(degrees: Sequence[Degree]) -> Degree:
    axes = _NO_AXES.union(*(d.axes for d in degrees))
    return Degree(max(d.numerator for d in degrees), max(d.denominator for d in degrees), axes)


def _sum_of_degrees(degrees: Sequence[Degree]) -> Degree:
    below = sum(d.denominator for d in degrees)
    axes = _NO_AXES.union(*(d.axes for d in degrees))
    return Degree(max(d.numerator + below - d.denominator for d in degrees), below, axes)


def _axes_read(e: Expr) -> frozenset[Axis]:
    return _NO_AXES.union(*(index_axes(x) for x in subexpressions(e) if isinstance(x, Axis)))
