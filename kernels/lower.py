"""From tensor expressions, schedules and layouts to a kernel in the tile-level form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from superopt.kernels.default import default
from superopt.kernels.element import Nest
from superopt.kernels.layout import Layout, Scatter, Stored, lying, row_major
from superopt.kernels.nest import around, nested
from superopt.kernels.region import region
from superopt.kernels.schedule import ComputeAt, IllegalSchedule, Schedule
from superopt.kernels.tile import Kernel, Stmt
from superopt.kernels.transform import Scheduled, transformed, unscheduled
from superopt.kernels.walk import loads, stages
from superopt.te.expr import Tensor
from superopt.te.node import Axis


def lowered(
    name: str,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    schedules: Mapping[Tensor, Schedule] | None = None,
    layouts: Mapping[Tensor, Layout | Scatter] | None = None,
    tables: Mapping[Tensor, np.ndarray] | None = None,
    packed: Sequence[Tensor] = (),
) -> Kernel:
    """A kernel of `inputs` that computes `outputs`; what these are computed from is scratch.

    Shapes are numbers. What is read must be in range, or under a select's guard. A tensor lies in
    its buffer as its layout says, row by row where it has none. The numbers of `tables` are known;
    the inputs `packed` are constants, which the kernel takes in the order in which it reads them.
    """
    how, placed = schedules or {}, layouts or {}
    nest = Nest(packed=dict.fromkeys(packed))
    order = stages(outputs)
    for t in inputs:
        if t in placed:
            nest.stored[t] = _buffer(t.name, t, placed[t])
    at = {t: a for t in order if (a := _at(how.get(t, ())))}
    said = _Given(how, placed, at)
    body: list[Stmt] = []
    for root in order:
        if root in at:
            continue
        kept = nest.stored[root] = _buffer(nest.fresh("t"), root, placed.get(root))
        if not any(root is o for o in outputs):
            nest.scratch.append((kept.buffer, "local"))
        s = _scheduled(unscheduled(root), how.get(root), kept.layout)
        body += _with_inner(nest, s, said)
    packs = [p for p in nest.packed.values() if p is not None]
    buffers = {t: s.buffer for t, s in nest.stored.items()} | {p.source: p.buffer for p in packs}
    given = [buffers.get(t, t) for t in inputs]
    params = (*given, *(nest.stored[o].buffer for o in outputs))
    known = tuple((tables or {}).items())
    return Kernel(name, params, tuple(body), tuple(nest.scratch), known, tuple(packs))


def _reads(t: Tensor, other: Tensor) -> bool:
    return t.body is not None and any(x.tensor is other for x in loads(t.body))


@dataclass(frozen=True, slots=True)
class _Given:
    """What is said of the tensors; and of those that are computed at loops of others, where."""

    schedules: Mapping[Tensor, Schedule]
    layouts: Mapping[Tensor, Layout | Scatter]
    at: Mapping[Tensor, ComputeAt]


def _at(schedule: Schedule) -> ComputeAt | None:
    return next((p for p in schedule if isinstance(p, ComputeAt)), None)


def _buffer(name: str, t: Tensor, layout: Layout | Scatter | None) -> Stored:
    layout = layout or row_major(t.rank)
    if isinstance(layout, Scatter):
        return Stored(Tensor(name, t.dtype, layout.layout.shape(layout.shape)), layout)
    shape = [n for n in t.shape if isinstance(n, int)]
    return Stored(Tensor(name, t.dtype, layout.shape(shape)), layout)


def _scheduled(s: Scheduled, schedule: Schedule | None, layout: Layout | Scatter) -> Scheduled:
    """By its schedule, or where that says only where, by the default one."""
    steps = schedule or ()
    if all(isinstance(p, ComputeAt) for p in steps):
        steps = (*default(s, lying(layout, s.tensor.rank)), *steps)
    return transformed(s, steps)


@dataclass(frozen=True, slots=True)
class _Placed:
    """A tensor's loops, inside which others' they are, and what is computed at each depth."""

    loops: Scheduled
    outer: tuple[Axis, ...]
    inner: dict[int, list[Tensor]]


def _with_inner(nest: Nest, root: Scheduled, given: _Given) -> tuple[Stmt, ...]:
    """The loops of a tensor, and within them what is computed at these."""
    placed = {root.tensor: _Placed(root, (), {})}
    for t in reversed(stages([root.tensor])):
        if t in given.at:
            _place(nest, t, given, placed)
    return _emitted(nest, root.tensor, placed)


def _place(nest: Nest, t: Tensor, given: _Given, placed: dict[Tensor, _Placed]) -> None:
    at = given.at[t]
    target = next((p for o, p in placed.items() if o.name == at.tensor), None)
    if target is None:
        raise IllegalSchedule(f"{at}: no {at.tensor} reads {t.name}")
    around_it = target.loops
    names = [x.axis.name.removeprefix(around_it.prefix) for x in around_it.loops]
    if at.axis not in names:
        raise IllegalSchedule(f"{at}: {at.tensor} has the loops {', '.join(names)}")
    depth = names.index(at.axis) + 1
    if any(x.reduced for x in around_it.loops[:depth]):
        raise IllegalSchedule(f"{at}: it is inside a sum")
    outer = (*target.outer, *(x.axis for x in around_it.loops[:depth]))
    readers = [p.loops for p in placed.values() if _reads(p.loops.tensor, t)]
    box = region(t, readers, outer)
    layout = given.layouts.get(t) or row_major(t.rank)
    if isinstance(layout, Scatter):
        raise IllegalSchedule(f"{t.name} is computed at {at}: it cannot lie as a part of another")
    buffer = Tensor(nest.fresh("t"), t.dtype, layout.shape([n for _, n in box]))
    nest.stored[t] = Stored(buffer, layout, tuple(b for b, _ in box))
    nest.scratch.append((buffer, "local"))
    own = unscheduled(t, f"{buffer.name}.", box)
    placed[t] = _Placed(_scheduled(own, given.schedules[t], layout), outer, {})
    target.inner.setdefault(depth, []).insert(0, t)


def _emitted(nest: Nest, t: Tensor, placed: dict[Tensor, _Placed]) -> tuple[Stmt, ...]:
    p = placed[t]
    deepest = max(p.inner, default=0)
    around_it = (*p.outer, *(x.axis for x in p.loops.loops[:deepest]))
    body = nested(nest, replace(p.loops, loops=p.loops.loops[deepest:]), around_it)
    for depth in range(deepest, -1, -1):
        before = [s for o in p.inner.get(depth, ()) for s in _emitted(nest, o, placed)]
        body = (*before, *body)
        if depth:
            body = around(p.loops.loops[depth - 1 : depth], body)
    return body
