"""From tensor expressions, schedules and layouts to a kernel in the tile-level form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from superopt.kernels.default import default
from superopt.kernels.element import Nest
from superopt.kernels.layout import Layout, Stored, row_major
from superopt.kernels.nest import around, nested
from superopt.kernels.region import region
from superopt.kernels.schedule import Compute_At, IllegalSchedule, Schedule
from superopt.kernels.tile import Kernel, Stmt
from superopt.kernels.transform import Scheduled, transformed, unscheduled
from superopt.kernels.walk import loads, stages
from superopt.te.expr import Tensor


def lowered(
    name: str,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    schedules: Mapping[Tensor, Schedule] | None = None,
    layouts: Mapping[Tensor, Layout] | None = None,
    tables: Mapping[Tensor, np.ndarray] | None = None,
) -> Kernel:
    """A kernel of `inputs` that computes `outputs`; what these are computed from is scratch.

    Shapes are numbers. What is read must be in range, or under a select's guard. A tensor lies in
    its buffer as its layout says, row by row where it has none. The numbers of `tables` are known.
    """
    how, lying = schedules or {}, layouts or {}
    nest = Nest()
    order = stages(outputs)
    for t in inputs:
        if t in lying:
            nest.stored[t] = _buffer(t.name, t, lying[t])
    inner = {t: a for t in order if (a := _at(how.get(t, ())))}
    body: list[Stmt] = []
    for root in order:
        if root in inner:
            continue
        kept = nest.stored[root] = _buffer(nest.fresh("t"), root, lying.get(root))
        if not any(root is o for o in outputs):
            nest.scratch.append((kept.buffer, "local"))
        s = _scheduled(unscheduled(root), how.get(root), kept.layout)
        body += _with_inner(nest, s, [t for t in stages([root]) if t in inner], how, lying)
    given = [nest.stored[t].buffer if t in nest.stored else t for t in inputs]
    params = (*given, *(nest.stored[o].buffer for o in outputs))
    return Kernel(name, params, tuple(body), tuple(nest.scratch), tuple((tables or {}).items()))


def _reads(t: Tensor, other: Tensor) -> bool:
    return t.body is not None and any(x.tensor is other for x in loads(t.body))


def _at(schedule: Schedule) -> str:
    return next((p.axis for p in schedule if isinstance(p, Compute_At)), "")


def _buffer(name: str, t: Tensor, layout: Layout | None) -> Stored:
    layout = layout or row_major(t.rank)
    shape = [n for n in t.shape if isinstance(n, int)]
    return Stored(Tensor(name, t.dtype, layout.shape(shape)), layout)


def _scheduled(s: Scheduled, schedule: Schedule | None, layout: Layout) -> Scheduled:
    """By its schedule, or where that says only where, by the default one."""
    steps = schedule or ()
    if all(isinstance(p, Compute_At) for p in steps):
        steps = (*default(s, layout), *steps)
    return transformed(s, steps)


def _with_inner(
    nest: Nest,
    root: Scheduled,
    inner: Sequence[Tensor],
    how: Mapping[Tensor, Schedule],
    lying: Mapping[Tensor, Layout],
) -> tuple[Stmt, ...]:
    """The loops of a tensor, and within them what is computed at these."""
    names = [x.axis.name for x in root.loops]
    depths: dict[Tensor, int] = {}
    placed: dict[Tensor, Scheduled] = {root.tensor: root}
    for t in reversed(inner):
        at = _at(how[t])
        if at not in names:
            raise IllegalSchedule(f"compute_at({at}): {root.tensor.name} has {', '.join(names)}")
        depths[t] = depth = names.index(at) + 1
        if any(x.reduced for x in root.loops[:depth]):
            raise IllegalSchedule(f"compute_at({at}): it is inside a sum")
        outer = [x.axis for x in root.loops[:depth]]
        readers = [s for s in placed.values() if _reads(s.tensor, t)]
        box = region(t, readers, outer)
        layout = lying.get(t) or row_major(t.rank)
        size = tuple(n for _, n in box)
        buffer = Tensor(nest.fresh("t"), t.dtype, layout.shape(size))
        nest.stored[t] = Stored(buffer, layout, tuple(b for b, _ in box))
        nest.scratch.append((buffer, "local"))
        placed[t] = _scheduled(unscheduled(t, f"{buffer.name}.", box), how[t], layout)
    deepest = max(depths.values(), default=0)
    rest = replace(root, loops=root.loops[deepest:])
    body = nested(nest, rest)
    for depth in range(deepest, -1, -1):
        before = [s for t in inner if depths[t] == depth for s in nested(nest, placed[t])]
        body = (*before, *body)
        if depth:
            body = around(root.loops[depth - 1 : depth], body)
    return body
