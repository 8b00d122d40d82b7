"""Apply a schedule's primitives to a tensor's loops, one after the other."""

from __future__ import annotations

from superopt.kernels import marks, transform
from superopt.kernels import schedule as kernels_schedule
from superopt.kernels.schedule import Primitive, Schedule
from superopt.kernels.transform import Scheduled


def apply_schedule(s: Scheduled, schedule: Schedule) -> Scheduled:
    """Apply every primitive of a schedule. Raises IllegalSchedule."""
    for primitive in schedule:
        s = apply_primitive(s, primitive)
    return s


def apply_primitive(s: Scheduled, primitive: Primitive) -> Scheduled:
    """Apply one primitive. Raises IllegalSchedule."""
    match primitive:
        case kernels_schedule.Split(axis, factor):
            return transform.split(s, axis, factor)
        case kernels_schedule.Cover(axis, factor):
            return transform.cover(s, axis, factor)
        case kernels_schedule.Fuse(outer, inner):
            return transform.fuse(s, outer, inner)
        case kernels_schedule.Reorder(axes):
            return transform.reorder(s, axes)
        case kernels_schedule.Tile(rows, columns, high, wide):
            return transform.tile(s, rows, columns, high, wide)
        case kernels_schedule.Unroll(axis):
            return marks.unroll(s, axis)
        case kernels_schedule.Vectorize(axis):
            return marks.vectorize(s, axis)
        case kernels_schedule.Parallel(axis):
            return marks.parallel(s, axis)
        case kernels_schedule.Bind(axis, to):
            return marks.bind(s, axis, to)
        case kernels_schedule.Vthread(axis):
            return marks.vthread(s, axis)
        case kernels_schedule.Pipeline(axis, stages):
            return marks.pipeline(s, axis, stages)
        case kernels_schedule.Tensorize(axis, intrinsic):
            return marks.tensorize(s, axis, intrinsic)
        case kernels_schedule.CacheWrite(axis):
            return marks.cache_write(s, axis)
        case kernels_schedule.CacheRead(_, axis):
            transform.loop_index(s, axis)  # the copy is a tensor of its own: staging.py
            return s
        case kernels_schedule.ComputeAt() | kernels_schedule.Inline():
            return s  # they concern the readers of this tensor: compute_at.py, staging.py
