"""Apply a schedule's primitives to a tensor's loops, one after the other."""

from __future__ import annotations

from superopt.kernels import marks, transform
from superopt.kernels import schedule as sc
from superopt.kernels.schedule import Primitive, Schedule
from superopt.kernels.transform import Scheduled


def transformed(s: Scheduled, schedule: Schedule) -> Scheduled:
    """Apply every primitive of a schedule. Raises IllegalSchedule."""
    for primitive in schedule:
        s = applied(s, primitive)
    return s


def applied(s: Scheduled, primitive: Primitive) -> Scheduled:
    """Apply one primitive. Raises IllegalSchedule."""
    match primitive:
        case sc.Split(axis, factor):
            return transform.split(s, axis, factor)
        case sc.Cover(axis, factor):
            return transform.cover(s, axis, factor)
        case sc.Fuse(outer, inner):
            return transform.fuse(s, outer, inner)
        case sc.Reorder(axes):
            return transform.reorder(s, axes)
        case sc.Tile(rows, columns, high, wide):
            return transform.tile(s, rows, columns, high, wide)
        case sc.Unroll(axis):
            return marks.unroll(s, axis)
        case sc.Vectorize(axis):
            return marks.vectorize(s, axis)
        case sc.Parallel(axis):
            return marks.parallel(s, axis)
        case sc.Bind(axis, to):
            return marks.bind(s, axis, to)
        case sc.Vthread(axis):
            return marks.vthread(s, axis)
        case sc.Pipeline(axis, stages):
            return marks.pipeline(s, axis, stages)
        case sc.Tensorize(axis, intrinsic):
            return marks.tensorize(s, axis, intrinsic)
        case sc.CacheWrite(axis):
            return marks.cache_write(s, axis)
        case sc.CacheRead(_, axis):
            transform.at(s, axis)  # the copy is a tensor of its own: staging.py
            return s
        case sc.ComputeAt() | sc.Inline():
            return s  # they concern the readers of this tensor: compute_at.py, staging.py
