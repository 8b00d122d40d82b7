"""Apply a schedule's primitives to a tensor's loops, one after the other."""

from __future__ import annotations

from superopt.kernels.loops import loop_annotations, loop_transforms
from superopt.kernels.loops import schedule as kernels_schedule
from superopt.kernels.loops.loop_transforms import Scheduled
from superopt.kernels.loops.schedule import Primitive, Schedule


def apply_schedule(s: Scheduled, schedule: Schedule) -> Scheduled:
    """Apply every primitive of a schedule. Raises IllegalSchedule."""
    for primitive in schedule:
        s = apply_primitive(s, primitive)
    return s


def apply_primitive(s: Scheduled, primitive: Primitive) -> Scheduled:
    """Apply one primitive. Raises IllegalSchedule."""
    match primitive:
        case kernels_schedule.Split(axis, factor):
            return loop_transforms.split(s, axis, factor)
        case kernels_schedule.Cover(axis, factor):
            return loop_transforms.cover(s, axis, factor)
        case kernels_schedule.Fuse(outer, inner):
            return loop_transforms.fuse(s, outer, inner)
        case kernels_schedule.Reorder(axes):
            return loop_transforms.reorder(s, axes)
        case kernels_schedule.Tile(rows, columns, high, wide):
            return loop_transforms.tile(s, rows, columns, high, wide)
        case kernels_schedule.Unroll(axis):
            return loop_annotations.unroll(s, axis)
        case kernels_schedule.Vectorize(axis):
            return loop_annotations.vectorize(s, axis)
        case kernels_schedule.Parallel(axis):
            return loop_annotations.parallel(s, axis)
        case kernels_schedule.CacheRead(_, axis):
            loop_transforms.loop_index(s, axis)  # the copy is a tensor of its own: staging.py
            return s
        case kernels_schedule.ComputeAt() | kernels_schedule.Inline():
            return s  # they concern the readers of this tensor: compute_at.py, staging.py
