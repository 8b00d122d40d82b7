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

from superopt.kernels.loops.layout import Layout, row_major
from superopt.plan.lowering.kernel_stages import kernel_inputs
from superopt.plan.rewrites.reductions.row_fusion import RowGroup, fuse_group, grow_row_group
from superopt.te.analysis.inline import substitute_axes
from superopt.te.analysis.walk import loads, reductions
from superopt.te.expr import index
from superopt.te.expr.node import Apply, Axis, Dim, Expr, Load, Reduce
from superopt.te.expr.tensor import Tensor

T = TypeVar("T")
ZERO = index.as_index(0)

# for each axis of a tensor, the axis of the result; None for a broadcast axis
Place = tuple[int | None, ...]

# Elements of a row; of longer rows too few are read contiguously. 4 million pixels of 21 classes in
# fp16: 427 us as four kernels, 121 as rows (a copy: 123).
MAX_ROW_ELEMENTS = 512


@dataclass(frozen=True, slots=True)
class AxisOrder:
    """The axes of a result: those that select a row, and those along it."""

    row_axes: tuple[int, ...]
    reduced_axes: tuple[int, ...]

    @property
    def axes(self) -> tuple[int, ...]:
        return self.row_axes + self.reduced_axes

    def permute_layout(self, layout: Layout | None) -> Layout:
        """Return a layout in terms of the axes in this order."""
        parts = (layout or row_major(len(self.axes))).parts
        return Layout(tuple(replace(p, axis=self.axes.index(p.axis)) for p in parts))

    def to_tensor_order(self, items: Sequence[T]) -> tuple[T, ...]:
        """Return `items`, given in this order, in the order of the tensor's axes."""
        return tuple(items[self.axes.index(n)] for n in range(len(items)))


def fuse_strided_softmax(
    current: Mapping[Tensor, Tensor],
    materialized: Collection[Tensor],
    batch_ranks: Mapping[Tensor, int],
) -> tuple[dict[Tensor, Tensor], dict[Tensor, AxisOrder]]:
    """Return the definitions with such rows fused, and the axis order of each fused result.
    batch_ranks: the tensors that are fused into rows already. materialized: the tensors that must
    be in memory."""
    out, orders = dict(current), dict[Tensor, AxisOrder]()
    for t in reversed(list(current)):
        order = None if t not in out or t in batch_ranks else _axis_order(t, out)
        if order is None:
            continue
        group = _row_group(t, order, out, {*materialized, *batch_ranks})
        if group is not None:
            found, now, stages = group
            out[t], orders[t] = fuse_group(found, now), order
            for x in stages:
                del out[x]
    return out, orders


def _axis_order(t: Tensor, current: Mapping[Tensor, Tensor]) -> AxisOrder | None:
    """Return the axis order of a tensor that reads a reduction which does not depend on some of its
    axes; None if there is none."""
    now = current[t]
    if now.body is None or reductions(now.body):
        return None
    for e in loads(now.body):
        x = current.get(e.tensor)
        if x is None or len(reductions(x.body)) != 1:
            continue
        rest = tuple(n for n, a in enumerate(now.axes) if a not in e.index and a.size > 1)
        first = tuple(n for n in range(now.rank) if n not in rest)
        if first and 1 < prod(now.axes[n].size for n in rest) <= MAX_ROW_ELEMENTS:
            return AxisOrder(first, rest)
    return None


def _row_group(
    t: Tensor, order: AxisOrder, current: Mapping[Tensor, Tensor], materialized: Collection[Tensor]
) -> tuple[RowGroup, Tensor, Sequence[Tensor]] | None:
    """Return the row group of a result, its permuted definition, and the other tensors of the
    group."""
    places = _axis_places(t, order, current, materialized)
    while True:
        turning = _Transposer(order, current[t].shape, places)
        turned = {x: turning.transposed_buffer(x) for x in places}
        new = {turned[x]: turning.transpose(current[x], x, turned) for x in current if x in places}
        readers: dict[Tensor, set[Tensor]] = {x: set() for x in new}
        for u, now in current.items():
            for x in places.keys() & kernel_inputs(now, current):
                readers[turned[x]].add(turned.get(u, u))
        group = grow_row_group(turned[t], new, (), readers)
        if group is None:
            return None
        inside = {x: p for x, p in places.items() if x is t or turned[x] in group.stages}
        if len(inside) == len(places):
            return group, new[turned[t]], [x for x in inside if x is not t]
        places = inside  # tensors outside of the group are read in their own order


def _axis_places(
    t: Tensor, order: AxisOrder, current: Mapping[Tensor, Tensor], materialized: Collection[Tensor]
) -> dict[Tensor, Place]:
    """Return the axis map of `t` and of its transitive producers that hold an element or one number
    for each of its rows."""
    sizes, row = current[t].shape, [current[t].axes[p] for p in order.reduced_axes]
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
                along |= zip(axes, order.reduced_axes, strict=True)
        wrong |= {e.tensor for x in loads(now.body) for i in x.index for e in loads(i)}
        for e in loads(now.body):
            x = e.tensor
            if x not in current or x in materialized or current[x].body is None:
                continue
            at = zip(e.index, x.shape, strict=True)
            place = tuple(along.get(i) if n != 1 else None for i, n in at)
            if (
                x in wrong
                or not _is_row_operand(place, x, order, sizes)
                or out.get(x, place) != place
            ):
                wrong.add(x)
                out.pop(x, None)
            elif x not in out:
                out[x] = place
                waiting.append(x)
    return out


def _is_row_operand(place: Place, x: Tensor, order: AxisOrder, sizes: Sequence[Dim]) -> bool:
    """True if the tensor holds one element for each of the result's, or one number for each row."""
    own = [p for p in place if p is not None]
    if any(n != (1 if p is None else sizes[p]) for p, n in zip(place, x.shape, strict=True)):
        return False
    wanted = {p for p in order.axes if sizes[p] != 1}
    return len(set(own)) == len(own) and set(own) in (wanted, wanted - {*order.reduced_axes})


@dataclass(frozen=True, slots=True)
class _Transposer:
    order: AxisOrder
    sizes: Sequence[Dim]
    places: Mapping[Tensor, Place]

    def axes(self, x: Tensor) -> Sequence[int]:
        """Return the axes of the result that a tensor of the group has."""
        own = {p for p in self.places[x] if p is not None}
        return self.order.axes if own & {*self.order.reduced_axes} else self.order.row_axes

    def transposed_buffer(self, x: Tensor) -> Tensor:
        return Tensor(x.name, x.dtype, tuple(self.sizes[p] for p in self.axes(x)))

    def transpose(self, definition: Tensor, x: Tensor, buffers: Mapping[Tensor, Tensor]) -> Tensor:
        """Return the definition of `x` with permuted axes."""
        assert definition.body is not None
        own = dict(zip(self.places[x], definition.axes, strict=True))
        axes = tuple(own[p] if p in own else Axis(f"one{p}", 1) for p in self.axes(x))
        gone: dict[Axis, Expr] = {a: ZERO for a in definition.axes if a not in axes}

        def made(e: Expr) -> Expr:
            match e:
                case Load(t, index, dtype) if t in buffers:
                    at = dict(zip(self.places[t], index, strict=True))
                    return Load(buffers[t], tuple(at.get(p, ZERO) for p in self.axes(t)), dtype)
                case Apply(fn, args, dtype):
                    return Apply(fn, tuple(map(made, args)), dtype)
                case Reduce(fn, over, body, dtype):
                    return Reduce(fn, over, made(body), dtype)
            return e

        return Tensor(
            definition.name,
            definition.dtype,
            self.transposed_buffer(x).shape,
            axes,
            substitute_axes(made(definition.body), gone),
        )
