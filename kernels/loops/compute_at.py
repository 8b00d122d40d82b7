"""Placement of tensors that are computed at a loop of one of their readers (compute_at)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from superopt.kernels.loops.apply import apply_schedule
from superopt.kernels.loops.element import KernelState
from superopt.kernels.loops.elementwise_schedule import default_schedule
from superopt.kernels.loops.layout import (
    BufferView,
    Layout,
    ScatteredLayout,
    effective_layout,
    row_major,
)
from superopt.kernels.loops.loop_nest import InnerStatements, emit_loop_nest, replace_reduction
from superopt.kernels.loops.loop_transforms import (
    Scheduled,
    initial_loops,
    reduction,
)
from superopt.kernels.loops.region import read_region
from superopt.kernels.loops.schedule import CacheRead, ComputeAt, IllegalSchedule, Schedule
from superopt.kernels.loops.tile import Stmt
from superopt.te.analysis.walk import computed_tensors, loads
from superopt.te.expr.node import Axis
from superopt.te.expr.tensor import Tensor


@dataclass(frozen=True, slots=True)
class LoweringInput:
    """What the schedules say of the tensors `order`, in dependency order. compute_at: where tensors
    are computed at loops of others; readers: the reader of each cached copy."""

    order: Sequence[Tensor]
    schedules: Mapping[Tensor, Schedule]
    layouts: Mapping[Tensor, Layout | ScatteredLayout]
    compute_at: Mapping[Tensor, ComputeAt | CacheRead]
    readers: Mapping[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class PlacedLoops:
    """A tensor's loops, the loops of others around them, and the tensors computed at each depth."""

    loops: Scheduled
    outer: tuple[Axis, ...] = ()
    inner: dict[int, list[Tensor]] = field(default_factory=dict)

    def __str__(self) -> str:
        t = self.loops.tensor
        where = f" inside {', '.join(a.name for a in self.outer)}" if self.outer else ""
        return f"{t.name}: {t.type}{where}\n{self.loops}"


def place_loops(
    nest: KernelState, root: Scheduled, lowering_input: LoweringInput
) -> dict[Tensor, PlacedLoops]:
    """Return the loops of a tensor, and of all tensors computed at these."""
    out = {root.tensor: PlacedLoops(root)}
    for t in reversed(computed_tensors([root.tensor])):
        if t in lowering_input.compute_at and any(_reads(p.loops.tensor, t) for p in out.values()):
            _compute_at(nest, t, lowering_input, out)
    return out


def emit_placed(
    nest: KernelState, t: Tensor, placements: Mapping[Tensor, PlacedLoops]
) -> tuple[Stmt, ...]:
    """Return the statements of a tensor, and of all tensors computed at its loops."""
    p = placements[t]

    def inside(some: Sequence[Tensor]) -> tuple[Stmt, ...]:
        return tuple(s for o in some for s in emit_placed(nest, o, placements))

    inner: InnerStatements = {depth: partial(inside, some) for depth, some in p.inner.items()}
    return emit_loop_nest(nest, p.loops, p.outer, inner)


def _compute_at(
    nest: KernelState,
    t: Tensor,
    lowering_input: LoweringInput,
    placements: dict[Tensor, PlacedLoops],
) -> None:
    """Place a tensor at a loop of a reader: the part of it that is read inside is computed there.

        for i < 64                    for i.o < 8
          t[i] = ..                     for i < 8
        for i.o < 8             =>        t[i] = ..
          for i.i < 8                   for i.i < 8
            y[i] = t[i] * 2               y[i] = t[i] * 2

    All its readers must be inside that loop; inside a reduction loop, only the term may read it.
    """
    primitive = lowering_input.compute_at[t]
    target = _target_loops(t, primitive, lowering_input, placements)
    s = target.loops
    names = [x.axis.name.removeprefix(s.prefix) for x in s.loops]
    if primitive.axis not in names:
        raise IllegalSchedule(f"{primitive}: {s.tensor.name} has the loops {', '.join(names)}")
    depth = names.index(primitive.axis) + 1
    around = s.loops[:depth]
    outer = (*target.outer, *(x.axis for x in around))
    if any(x.reduced for x in around) and _reads_outside_sum(s.tensor, t):
        raise IllegalSchedule(f"{primitive}: it is inside a reduction, but also read outside of it")
    for reader in (r for r in lowering_input.order if _reads(r, t)):
        where = placements[reader].outer if reader in placements else None
        if reader is not s.tensor and (where is None or where[: len(outer)] != outer):
            raise IllegalSchedule(f"{primitive}: {reader.name} reads {t.name} outside of that loop")
    layout = lowering_input.layouts.get(t) or row_major(t.rank)
    if isinstance(layout, ScatteredLayout):
        raise IllegalSchedule(f"{primitive}: {t.name} is stored as a part of another tensor")
    readers = [p.loops for p in placements.values() if _reads(p.loops.tensor, t)]
    box = read_region(t, readers, outer)
    shape = layout.shape([n for _, n in box])
    buffer = Tensor(nest.fresh("t"), t.dtype, shape)
    nest.stored[t] = BufferView(buffer, layout, tuple(b for b, _ in box))
    nest.scratch.append((buffer, "local"))
    own = initial_loops(t, f"{buffer.name}.", box)
    placements[t] = PlacedLoops(
        apply_or_default(own, lowering_input.schedules.get(t), layout), outer
    )
    target.inner.setdefault(depth, []).insert(0, t)


def _target_loops(
    t: Tensor,
    primitive: ComputeAt | CacheRead,
    lowering_input: LoweringInput,
    placements: Mapping[Tensor, PlacedLoops],
) -> PlacedLoops:
    if isinstance(primitive, CacheRead):
        return placements[lowering_input.readers[t]]
    found = next((p for o, p in placements.items() if o.name == primitive.tensor), None)
    if found is None:
        reader = next(o.name for o in placements if _reads(o, t))
        raise IllegalSchedule(
            f"{primitive}: {reader} reads {t.name}, but is not inside loops of {primitive.tensor}"
        )
    return found


def _reads(t: Tensor, other: Tensor) -> bool:
    return t.body is not None and any(x.tensor is other for x in loads(t.body))


def _reads_outside_sum(t: Tensor, other: Tensor) -> bool:
    """True if `t` reads it outside of its reduction."""
    found = reduction(t)
    if found is None or t.body is None:
        return False
    rest = replace_reduction(t.body, found, Tensor("sum", found.dtype, ()), ())
    return any(x.tensor is other for x in loads(rest))


def apply_or_default(
    s: Scheduled, schedule: Schedule | None, layout: Layout | ScatteredLayout
) -> Scheduled:
    """Apply a tensor's schedule, or the default one if it only says where."""
    steps = schedule or ()
    if all(isinstance(p, ComputeAt) for p in steps):
        steps = (*default_schedule(s, effective_layout(layout, s.tensor.rank)), *steps)
    return apply_schedule(s, steps)
