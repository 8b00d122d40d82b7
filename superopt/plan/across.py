"""Rows that lie across others: a softmax over the channels of pictures, as one kernel.

What is summed over other axes than the last is as much a row as one that lies in one piece
(rows.py); a GPU reads it well where some neighbours are rows of one program, each element of all
of them beside each other.  The result has its axes in another order here, and lies as it did.
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

Place = tuple[int | None, ...]  # of each axis of a tensor which one of the result it is; None: 1

LONGEST = 512  # elements of a row: of longer ones too few are read beside each other


@dataclass(frozen=True, slots=True)
class AxisOrder:
    """Of the axes of a result: those that say which row, and those along it."""

    first: tuple[int, ...]
    rest: tuple[int, ...]

    @property
    def axes(self) -> tuple[int, ...]:
        return self.first + self.rest

    def lies(self, layout: Layout | None) -> Layout:
        """A layout, said of the axes in this order."""
        parts = (layout or row_major(len(self.axes))).parts
        return Layout(tuple(replace(p, axis=self.axes.index(p.axis)) for p in parts))

    def back(self, some: Sequence[T]) -> tuple[T, ...]:
        """What is in this order, in the axes' own."""
        return tuple(some[self.axes.index(n)] for n in range(len(some)))


def across(
    current: Mapping[Tensor, Tensor], stay: Collection[Tensor], leads: Mapping[Tensor, int]
) -> tuple[dict[Tensor, Tensor], dict[Tensor, AxisOrder]]:
    """What is computed then; and the order of the axes of what is computed row by row, beside
    `leads`, which is that already. stay: those that are needed in memory."""
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
    """Where `t` reads a sum that does not hang on some of its axes: the others, and these."""
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
    """The group of a result, that as it was computed, and what else is in it."""
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
        places = inside  # what is not of the group is read as it lies


def _places(
    t: Tensor, order: AxisOrder, current: Mapping[Tensor, Tensor], stay: Collection[Tensor]
) -> dict[Tensor, Place]:
    """Of it, and of what it reads, and what that reads, which are its elements or numbers of its
    rows."""
    sizes, row = current[t].shape, [current[t].axes[p] for p in order.rest]
    out: dict[Tensor, Place] = {t: tuple(range(t.rank))}
    wrong: set[Tensor] = set()
    waiting = [t]
    while waiting:
        u = waiting.pop()
        if u not in out:  # it was one of another kind
            continue
        now = current[u]
        along: dict[Expr, int] = {
            a: p for a, p in zip(now.axes, out[u], strict=True) if p is not None
        }
        assert now.body is not None
        sums = [r.axes for r in reductions(now.body)]
        if any(prod(a.size for a in axes) > prod(a.size for a in row) for axes in sums):
            out.pop(u)  # of something else, of which there is more
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
    """Is it an element for each of the result's, or a number for each row?"""
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
        """Those of the result which a tensor then has."""
        own = {p for p in self.places[x] if p is not None}
        return self.order.axes if own & {*self.order.rest} else self.order.first

    def empty(self, x: Tensor) -> Tensor:
        return Tensor(x.name, x.dtype, tuple(self.sizes[p] for p in self.axes(x)))

    def turned(self, now: Tensor, x: Tensor, turned: Mapping[Tensor, Tensor]) -> Tensor:
        """What is computed of it, in its other order."""
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
