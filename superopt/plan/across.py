"""Fuse softmax and other row computations over axes that are not innermost, such as a softmax over
the channels of an image, into one kernel.

A reduction over axes other than the last is a row computation as well as one over contiguous
elements (row_fusion.py). A GPU reads it well if one program computes several neighbouring rows, so
that their elements are contiguous. The axes of the result are permuted in the kernel; its memory
layout does not change.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TypeVar

from superopt.kernels.layout import Layout, row_major
from superopt.plan.rows import Group, fused, grown
from superopt.plan.within import needs
from superopt.te import index as ix
from superopt.te.expr import Tensor
from superopt.te.inline import placed
from superopt.te.node import Apply, Axis, Dim, Expr, Load, Reduce
from superopt.te.walk import loads, reductions

T = TypeVar("T")
ZERO = ix.as_index(0)

# for each axis of a tensor, the axis of the result; None for a broadcast axis
Place = tuple[int | None, ...]

LONGEST = 512  # elements of a row; of longer rows too few are read contiguously


@dataclass(frozen=True, slots=True)
class AxisOrder:
    """The axes of a result: those that select a row, and those along it."""

    first: tuple[int, ...]
    rest: tuple[int, ...]

    @property
    def axes(self) -> tuple[int, ...]:
        return self.first + self.rest

    def lies(self, layout: Layout | None) -> Layout:
        """Return a layout in terms of the axes in this order."""
        parts = (layout or row_major(len(self.axes))).parts
        return Layout(tuple(replace(p, axis=self.axes.index(p.axis)) for p in parts))

    def back(self, some: Sequence[T]) -> tuple[T, ...]:
        """Return `items`, given in this order, in the order of the tensor's axes."""
        return tuple(some[self.axes.index(n)] for n in range(len(some)))


def across(
    current: Mapping[Tensor, Tensor], stay: Collection[Tensor], leads: Mapping[Tensor, int]
) -> tuple[dict[Tensor, Tensor], dict[Tensor, AxisOrder]]:
    """Return the definitions with such rows fused, and the axis order of each fused result.
    batch_ranks: the tensors that are fused into rows already. materialized: the tensors that must
    be in memory."""
    out, orders = dict(current), dict[Tensor, AxisOrder]()
    for t in reversed(list(current)):
        order = None if t not in out or t in leads else _order(t, out)
        if order is None:
            continue
        group = _group(t, order, out, {*stay, *leads})
        if group is not None:
            found, now, stages = group
            out[t], orders[t] = fused(found, now), order
            for x in stages:
                del out[x]
    return out, orders


def _order(t: Tensor, current: Mapping[Tensor, Tensor]) -> AxisOrder | None:
    """Return the axis order of a tensor that reads a reduction which does not depend on some of its
    axes; None where there is none."""
    now = current[t]
    if now.body is None or reductions(now.body):
        return None
    for e in loads(now.body):
        x = current.get(e.tensor)
        if x is None or len(reductions(x.body)) != 1:
            continue
        rest = tuple(n for n, a in enumerate(now.axes) if a not in e.index and a.size > 1)
        first = tuple(n for n in range(now.rank) if n not in rest)
        if first and 1 < prod(now.axes[n].size for n in rest) <= LONGEST:
            return AxisOrder(first, rest)
    return None


def _group(
    t: Tensor, order: AxisOrder, current: Mapping[Tensor, Tensor], stay: Collection[Tensor]
) -> tuple[Group, Tensor, Sequence[Tensor]] | None:
    """Return the row group of a result, its permuted definition, and the other tensors of the
    group."""
    places = _places(t, order, current, stay)
    while True:
        turning = _Turning(order, current[t].shape, places)
        turned = {x: turning.empty(x) for x in places}
        new = {turned[x]: turning.turned(current[x], x, turned) for x in current if x in places}
        readers: dict[Tensor, set[Tensor]] = {x: set() for x in new}
        for u, now in current.items():
            for x in places.keys() & needs(now, current):
                readers[turned[x]].add(turned.get(u, u))
        group = grown(turned[t], new, (), readers)
        if group is None:
            return None
        inside = {x: p for x, p in places.items() if x is t or turned[x] in group.stages}
        if len(inside) == len(places):
            return group, new[turned[t]], [x for x in inside if x is not t]
        places = inside  # tensors outside of the group are read in their own order


def _places(
    t: Tensor, order: AxisOrder, current: Mapping[Tensor, Tensor], stay: Collection[Tensor]
) -> dict[Tensor, Place]:
    """Return the axis map of `t` and of its transitive producers that hold an element or one number
    for each of its rows."""
    sizes, row = current[t].shape, [current[t].axes[p] for p in order.rest]
    out: dict[Tensor, Place] = {t: tuple(range(t.rank))}
    wrong: set[Tensor] = set()
    waiting = [t]
    while waiting:
        u = waiting.pop()
        if u not in out:  # found to be no row operand since
            continue
        now = current[u]
        along: dict[Expr, int] = {
            a: p for a, p in zip(now.axes, out[u], strict=True) if p is not None
        }
        assert now.body is not None
        sums = [r.axes for r in reductions(now.body)]
        if any(prod(a.size for a in axes) > prod(a.size for a in row) for axes in sums):
            out.pop(u)  # a reduction over more elements than a row
            wrong.add(u)
            continue
        for axes in sums:
            if [a.extent for a in axes] == [a.extent for a in row]:
                along |= zip(axes, order.rest, strict=True)
        wrong |= {e.tensor for x in loads(now.body) for i in x.index for e in loads(i)}
        for e in loads(now.body):
            x = e.tensor
            if x not in current or x in stay or current[x].body is None:
                continue
            at = zip(e.index, x.shape, strict=True)
            place = tuple(along.get(i) if n != 1 else None for i, n in at)
            if x in wrong or not _fits(place, x, order, sizes) or out.get(x, place) != place:
                wrong.add(x)
                out.pop(x, None)
            elif x not in out:
                out[x] = place
                waiting.append(x)
    return out


def _fits(place: Place, x: Tensor, order: AxisOrder, sizes: Sequence[Dim]) -> bool:
    """True if the tensor holds one element for each of the result's, or one number for each row."""
    own = [p for p in place if p is not None]
    if any(n != (1 if p is None else sizes[p]) for p, n in zip(place, x.shape, strict=True)):
        return False
    wanted = {p for p in order.axes if sizes[p] != 1}
    return len(set(own)) == len(own) and set(own) in (wanted, wanted - {*order.rest})


@dataclass(frozen=True, slots=True)
class _Turning:
    order: AxisOrder
    sizes: Sequence[Dim]
    places: Mapping[Tensor, Place]

    def axes(self, x: Tensor) -> Sequence[int]:
        """Return the axes of the result that a tensor of the group has."""
        own = {p for p in self.places[x] if p is not None}
        return self.order.axes if own & {*self.order.rest} else self.order.first

    def empty(self, x: Tensor) -> Tensor:
        return Tensor(x.name, x.dtype, tuple(self.sizes[p] for p in self.axes(x)))

    def turned(self, now: Tensor, x: Tensor, turned: Mapping[Tensor, Tensor]) -> Tensor:
        """Return the definition of `x` with permuted axes."""
        assert now.body is not None
        own = dict(zip(self.places[x], now.axes, strict=True))
        axes = tuple(own[p] if p in own else Axis(f"one{p}", 1) for p in self.axes(x))
        gone: dict[Axis, Expr] = {a: ZERO for a in now.axes if a not in axes}

        def made(e: Expr) -> Expr:
            match e:
                case Load(t, index, dtype) if t in turned:
                    at = dict(zip(self.places[t], index, strict=True))
                    return Load(turned[t], tuple(at.get(p, ZERO) for p in self.axes(t)), dtype)
                case Apply(fn, args, dtype):
                    return Apply(fn, tuple(map(made, args)), dtype)
                case Reduce(fn, over, body, dtype):
                    return Reduce(fn, over, made(body), dtype)
            return e

        return Tensor(now.name, now.dtype, self.empty(x).shape, axes, placed(made(now.body), gone))
